"""tensorize_ and to_dense on whole models: what is kept, what is learned, and that an error changes nothing."""

import copy
import io
from typing import NamedTuple

import pytest
import torch
from models import CASES, encoder, gpt2, mlp, noise, tokens
from models.text import TextClassifier
from torch import nn

import rankfold as rf
from rankfold.config import CP, TT, TTM, Tucker
from rankfold.layers import Recurrent, TensorizedModule
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.surgery.tensorize import tensorize_, to_dense

FORMATS = [CP, Tucker, TT, TTM]


def twins(model: nn.Module) -> list[TensorizedModule]:
    return [module for module in model.modules() if isinstance(module, TensorizedModule)]


# Whole models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["bayes", "map", "fixed"])
@pytest.mark.parametrize("name", CASES)
def test_models_train(name, inference):
    torch.manual_seed(0)
    case = CASES[name]
    model = case.build()
    kind = type(model)
    assert tensorize_(model, TTM(4, inference=inference), case.filter_fn) is model
    assert type(model) is kind
    optimizer = torch.optim.Adam(param_groups(model, lr=1e-3))
    ranks = RankDetermination(model, optimizer, num_data=100, total_steps=10)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        (case.loss(model) + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    moved = [not torch.equal(old, new.detach()) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(moved)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_the_dense_copy_computes_the_same(name):
    torch.manual_seed(0)
    case = CASES[name]
    model = tensorize_(case.build(), TTM(4), case.filter_fn).eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    dense = to_dense(model)
    assert not twins(dense)
    assert all("rankfold" not in type(module).__module__ for module in dense.modules())
    assert twins(model)
    with torch.no_grad():  # attention takes its fast path
        torch.testing.assert_close(case.call(model), case.call(dense), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(case.call(model), case.call(dense), rtol=1e-4, atol=1e-5)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0)


@pytest.mark.parametrize("config", [Tucker, TT, TTM])
@pytest.mark.parametrize("name", ["mlp", "text with LSTM", "resnet", "encoder", "gpt2"])
def test_at_full_rank_trained_weights_keep_the_function(name, config):
    torch.manual_seed(0)
    case = CASES[name]
    # as many as any of these modes can use; a Tucker core grows with their product
    ranks = (16 if name == "resnet" else 24) if config is Tucker else 400
    model = case.build().double().eval()
    torch.set_default_dtype(torch.float64)
    try:
        expected = case.call(model)
        tensorize_(model, config(ranks, order=2), case.filter_fn or nn.Module, trained=True)
        torch.testing.assert_close(case.call(model), expected, rtol=1e-7, atol=1e-8)
    finally:
        torch.set_default_dtype(torch.float32)


def test_trained_weights_start_closer_the_higher_the_rank():
    torch.manual_seed(0)
    dense, errors = mlp().double(), []
    x = noise(20, 64).double()
    for rank in (1, 4, 16, 48):
        model = tensorize_(copy.deepcopy(dense), CP(rank, order=1), nn.Linear, trained=True).eval()
        errors.append((model(x) - dense(x)).square().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12 * errors[0]


def test_from_scratch_weights_have_the_spread_of_the_dense_ones():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 128), nn.Embedding(500, 64), nn.Conv2d(32, 64, 3))
    nn.init.normal_(model[0].weight, std=0.3)
    expected = [layer.weight.std().item() for layer in model]
    tensorize_(model, TT(16)).eval()
    for layer, std in zip(model, expected, strict=True):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("config", FORMATS)
def test_every_format_fits_every_layer(config):
    model = nn.ModuleList(
        [
            nn.Linear(30, 42),
            nn.Embedding(101, 24, padding_idx=3),
            nn.EmbeddingBag(101, 24, mode="sum"),
            nn.Conv1d(12, 18, 3, groups=2),
            nn.Conv2d(12, 18, (3, 2), stride=2, padding_mode="reflect", padding=1),
            nn.GRU(12, 18),
        ]
    )
    tensorize_(model, config(3), nn.Module).eval()
    dense = to_dense(model)
    inputs = [noise(2, 30), tokens(), tokens(), noise(2, 12, 9), noise(2, 12, 7, 7), noise(5, 2, 12)]
    for tensorized, plain, x in zip(model, dense, inputs, strict=True):
        assert type(tensorized) is not type(plain)
        torch.testing.assert_close(tensorized(x), plain(x), rtol=1e-4, atol=1e-5)


def test_hugging_face_generates():
    torch.manual_seed(0)
    model = tensorize_(gpt2(), TTM(4)).eval()
    prompt, dense = tokens(), to_dense(model)
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    torch.testing.assert_close(model.generate(prompt, **options), dense.generate(prompt, **options))


def test_hugging_face_reads_what_the_dense_copy_writes(tmp_path):
    model = tensorize_(gpt2(), TTM(4)).eval()
    to_dense(model).save_pretrained(tmp_path)
    read = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(read(tokens()).logits, model(tokens()).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "bert", "text with LSTM"])
def test_states_travel(name):
    case = CASES[name]
    torch.manual_seed(0)
    model = tensorize_(case.build(), TTM(4), case.filter_fn).eval()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = tensorize_(case.build(), TTM(4), case.filter_fn).eval()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(case.call(fresh), case.call(model), rtol=0, atol=0)


def test_the_text_classifier_with_its_lstm_chosen_by_override():
    model = tensorize_(TextClassifier(), CP(2), "embedding", overrides={"lstm": TT(3, inference="map")})
    assert isinstance(model.lstm, Recurrent)
    assert model.lstm.tensors["weight_ih_l0"].format.name == "TT"
    assert isinstance(model.head, nn.Linear)
    assert model(tokens(200)).shape == (2, 3)


# What is kept -----------------------------------------------------------------------------------------


def test_training_mode_of_every_module_is_kept():
    model = mlp()
    model[1].eval()
    tensorize_(model, CP(2))
    assert not model[1].training
    assert not any(module.training for module in model[1].modules())
    assert all(module.training for module in model[3].modules())
    dense = to_dense(model)
    assert (dense[1].training, dense[3].training, dense.training) == (False, True, True)


def test_frozen_parameters_stay_frozen():
    model = TextClassifier()
    model.embedding.weight.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    model.lstm.weight_hh_l0.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"in embedding; start from the weights with trained=True, or keep them dense"):
        tensorize_(model, TTM(3), nn.Module)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    prefixes = ("embedding.tensor.", "head.bias_vector.", "lstm.tensors.weight_hh_l0.")
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(prefixes)}
    assert len(frozen) >= 3
    again = to_dense(model)
    assert {name for name, p in again.named_parameters() if not p.requires_grad} == {
        "embedding.weight",
        "head.bias",
        "lstm.weight_hh_l0",
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    model = tensorize_(mlp().to(dtype), CP(2))
    assert all(mean.dtype == dtype for layer in twins(model) for mean in layer.tensor.factors.mean)
    assert model(noise(2, 64).to(dtype)).dtype == dtype
    assert all(parameter.dtype == dtype for parameter in to_dense(model).parameters())


def test_hooks_are_kept_and_their_handles_still_remove_them():
    model, calls = mlp(), []
    handles = [
        model[1].register_forward_pre_hook(lambda module, args: calls.append("pre")),
        model[1].register_forward_hook(lambda module, args, output: calls.append("forward")),
        model[1].register_forward_hook(lambda module, args, kwargs, output: calls.append("kwargs"), with_kwargs=True),
        model[1].register_full_backward_hook(lambda module, inward, outward: calls.append("backward")),
        model[1].register_full_backward_pre_hook(lambda module, outward: calls.append("before backward")),
    ]
    tensorize_(model, CP(2))
    x = noise(2, 64).requires_grad_()
    model(x).sum().backward()
    expected = ["pre", "forward", "kwargs", "before backward", "backward"]
    assert calls == expected
    calls.clear()
    to_dense(model)(x).sum().backward()
    assert calls == expected
    calls.clear()
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert calls == []


def test_what_is_not_chosen_is_the_same_object():
    model = mlp()
    kept = [model[0], model[2], model[3]]
    tensorize_(model, CP(2), "1")
    assert [model[0], model[2], model[3]] == kept


def test_biases_and_padding_of_the_dense_layers_are_kept():
    model = nn.Sequential(nn.Embedding(50, 20, padding_idx=-1), nn.Linear(20, 30), nn.Linear(30, 20, bias=False))
    bias = model[1].bias.detach().clone()
    tensorize_(model, CP(2), nn.Module)
    assert model[0].padding_idx == 49
    torch.testing.assert_close(model.eval()[1].bias.detach(), bias, rtol=0, atol=0)
    assert model[2].bias is None


def test_a_second_surgery_leaves_the_first_alone():
    model = tensorize_(mlp(), CP(2), "1")
    first = model[1]
    tensorize_(model, TT(2), nn.Linear)
    assert model[1] is first
    assert model[3].tensor.format.name == "TT"


def test_a_tensorized_layer_alone_becomes_dense():
    layer = rf.Linear(6, 4, config=CP(2)).eval()
    dense = to_dense(layer)
    assert type(dense) is nn.Linear
    torch.testing.assert_close(dense(noise(3, 6)), layer(noise(3, 6)))


def test_a_dense_model_becomes_a_copy_of_itself():
    model = mlp()
    copied = to_dense(model)
    assert copied is not model
    torch.testing.assert_close(copied(noise(2, 64)), model(noise(2, 64)), rtol=0, atol=0)


# Attention reaches into its layers --------------------------------------------------------------------


def test_attention_samples_in_training_and_is_exact_in_eval():
    torch.manual_seed(0)
    model, x = tensorize_(encoder(), TTM(4)), noise(2, 5, 32)
    for layer in model.layers:
        layer.dropout.p = layer.dropout1.p = layer.dropout2.p = layer.self_attn.dropout = 0.0
    assert not torch.equal(model(x), model(x))
    model.eval()
    torch.testing.assert_close(model(x), model(x), rtol=0, atol=0)


def test_the_fast_path_of_the_encoder_is_taken(monkeypatch):
    model, calls = tensorize_(encoder(), TTM(4)).eval(), []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fast(*args))
    with torch.no_grad():
        quick = model(noise(2, 5, 32))
    assert len(calls) == 2
    torch.testing.assert_close(quick, model(noise(2, 5, 32)), rtol=1e-4, atol=1e-5)


# Progress and refusals --------------------------------------------------------------------------------


def test_progress_is_told_for_every_layer():
    calls = []
    tensorize_(mlp(), TTM(2), trained=True, progress=lambda *call: calls.append(call))
    assert calls == [("1", 1, 2), ("3", 2, 2)]


def snapshot(model: nn.Module) -> tuple:
    values = [(name, id(p), p.detach().clone()) for name, p in model.named_parameters(remove_duplicate=False)]
    return dict(model.named_modules(remove_duplicate=False)), values


def assert_unchanged(model: nn.Module, before: tuple) -> None:
    modules, values = snapshot(model)
    assert modules == before[0]
    for (name, key, value), (old_name, old_key, old_value) in zip(values, before[1], strict=True):
        assert (name, key) == (old_name, old_key)
        torch.testing.assert_close(value, old_value, rtol=0, atol=0)


def refused_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Embedding(500, 64, sparse=True), nn.Embedding(500, 64, max_norm=1.0))


@pytest.mark.parametrize(
    ("build", "config", "arguments", "message"),
    [
        (refused_layer, CP(2), {}, r"2 of the chosen layers cannot .* unchanged\.\n  1: sparse=True .*\n  2: max_norm"),
        (refused_layer, CP(2), {}, r"To keep a layer dense, pass overrides=\{'1': None\}"),
        (mlp, CP(2, in_dims=(6, 8)), {}, r"1: dims \(6, 8\) hold 48 entries, but 64 are needed"),
        (mlp, TT((2, 2, 2)), {}, "1: TT with input modes .* has . ranks, got 3"),
        (mlp, CP(500), {}, r"no layer would be tensorized; .*\n  1 stays dense: would grow from 3,072"),
        (
            lambda: nn.Sequential(nn.ReLU()),
            CP(2),
            {},
            "has no layer that can be tensorized; supported are Linear, Embed",
        ),
        (lambda: nn.Linear(4, 4), CP(2), {}, "cannot be replaced in place"),
        (mlp, CP(2), {"filter_fn": lambda module, name: False}, "no layer would be tensorized"),
        (mlp, CP(2), {"filter_fn": nn.LSTM}, "the model has no LSTM, which filter_fn asks for"),
        (lambda: tensorize_(mlp(), CP(2), nn.Linear), CP(2), {}, r"at 1, 3; leave it as it is, or .* by filter_fn\.$"),
        (
            lambda: tensorize_(mlp(), CP(2), "1"),
            CP(2),
            {"overrides": {"3": None}},
            r"already tensorized, at 1; .*\.\nNo other layer would be tensorized:\n  3 stays dense: overrides keep it",
        ),
    ],
)
def test_refusals_change_nothing(build, config, arguments, message):
    model = build()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        tensorize_(model, config, **arguments)
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    "surgery", [lambda model: tensorize_(model, CP(2)), lambda model: rf.plan(model, CP(2)), to_dense]
)
def test_what_is_no_model_is_named(surgery):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got list"):
        surgery([1])


def test_a_failure_while_building_changes_nothing():
    model = mlp()

    def fail_late(name, number, total):
        if number == total:
            raise KeyboardInterrupt

    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        tensorize_(model, TTM(2), progress=fail_late)
    assert_unchanged(model, before)


def test_trained_weights_must_be_finite():
    model = mlp()
    with torch.no_grad():
        model[3].weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="trained=True needs finite weights, but 3 holds NaN or infinity"):
        tensorize_(model, TTM(2), trained=True)
    tensorize_(model, TTM(2))


def test_a_refused_layer_can_be_kept_dense():
    model = tensorize_(refused_layer(), CP(2), overrides={"[12]": None})
    assert isinstance(model[0], rf.Linear)
    assert isinstance(model[1], nn.Embedding)


def test_a_layer_with_a_forward_of_its_own_is_refused_by_name():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(Own(40, 40), nn.Linear(40, 40))
    with pytest.raises(ValueError, match="0: Own has a forward of its own"):
        tensorize_(model, CP(2), overrides={"0": CP(3)})
    tensorize_(model, CP(2))
    assert type(model[0]) is Own


def test_what_else_a_layer_owns_is_not_lost():
    def with_buffer(layer):
        bias = layer.bias.detach()
        del layer.bias
        layer.register_buffer("bias", bias)

    def with_child(layer):
        layer.adapter = nn.Linear(2, 2)

    def with_tensor(layer):
        layer.scale = torch.ones(3)

    for change, name in ((with_buffer, "bias"), (with_child, "adapter"), (with_tensor, "scale")):
        model = nn.Sequential(nn.Linear(64, 64))
        change(model[0])
        with pytest.raises(ValueError, match=rf"it also holds {name}|its parameters are"):
            tensorize_(model, TT(3), "0")
        assert type(model[0]) is nn.Linear


def test_frozen_weights_that_are_kept_are_nothing_to_warn_of():
    model = nn.Sequential(nn.Embedding.from_pretrained(torch.randn(64, 16), freeze=True))
    before = model[0].weight
    tensorize_(model, TT(16), "0", trained=True)
    torch.testing.assert_close(model.eval()[0].weight, before)


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("value", [torch.zeros(9, 9), nn.Parameter(torch.zeros(9, 9)), None])
def test_a_weight_that_is_computed_cannot_be_set(name, value):
    model = tensorize_(nn.Sequential(nn.Linear(9, 9)), TT(2), "0")
    with pytest.raises(AttributeError, match=f"{name} of Linear is computed from factors.*trained=True"):
        setattr(model[0], name, value)


def test_tuples_of_a_class_of_their_own_are_left_alone():
    class Two(tuple):
        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model.pair = before = Two(model[0], model[1])
    tensorize_(model, TT(3))
    assert model.pair is before
    assert all(isinstance(layer, rf.Linear) for layer in model)


def test_layers_in_plain_containers_are_replaced_there_too():
    class Pair(NamedTuple):
        x: nn.Module
        y: nn.Module

    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.listed, self.pair, self.named = [self.first, 3], (self.first, self.second), {"b": self.second}
            self.nested = {"blocks": [("a", self.first)], "pair": Pair(self.first, self.second)}
            self.nested["self"] = self.nested
            vars(self)["plain"] = self.second

        def forward(self, x):
            return self.named["b"](self.listed[0](x))

    model = Listed()
    kept = model.listed
    tensorize_(model, TT(3))
    assert model.listed is kept
    assert model.listed == [model.first, 3]
    assert model.pair == (model.first, model.second)
    assert model.named["b"] is model.second
    assert model.nested["blocks"] == [("a", model.first)]
    assert model.nested["pair"].y is model.second
    assert vars(model)["plain"] is model.second
    model(torch.randn(2, 64)).sum().backward()
    assert all(p.grad is not None for p in model.first.tensor.factors.mean)
    dense = to_dense(model)
    assert dense.listed[0] is dense.first
    assert type(dense.first) is nn.Linear


def test_containers_that_cannot_be_changed_are_left_alone():
    class Frozen(dict):
        def update(self, *args, **kwargs):
            raise TypeError("frozen")

    model = nn.Sequential(nn.Linear(64, 64))
    model.settings, model.sizes = Frozen(x=1), (1, 2)
    tensorize_(model, TT(3))
    assert type(model[0]) is not nn.Linear
    assert model.settings == {"x": 1}
    assert to_dense(model).settings == {"x": 1}


def test_a_padding_row_that_is_not_zero_is_pointed_out():
    table = nn.Embedding.from_pretrained(torch.randn(50, 16), freeze=False, padding_idx=7)
    with pytest.warns(UserWarning, match=r"padding_idx becomes zero, which it is not yet, in 0") as caught:
        model = tensorize_(nn.Sequential(table), TT(3), "0", trained=True)
    assert caught[0].filename == __file__
    assert not model(torch.tensor([7])).any()
