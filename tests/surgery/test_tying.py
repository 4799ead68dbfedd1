"""Weights that layers share stay shared, or the surgery is refused."""

import copy
from functools import partial

import pytest
import torch
from models import bert, gpt2, noise, tokens
from safetensors.torch import load_file
from torch import nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import CP, TT, TTM
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.surgery.tensorize import tensorize_, to_dense


class LanguageModel(nn.Module):
    """An embedding, something in between, and a head that shares the embedding's weight."""

    def __init__(self, padding_idx: int | None = None, head_first: bool = False) -> None:
        super().__init__()
        words, head = nn.Embedding(24, 12, padding_idx=padding_idx), nn.Linear(12, 24)
        if head_first:
            self.head, self.words = head, words
        else:
            self.words, self.head = words, head
        self.between = nn.Linear(12, 12)
        self.head.weight = self.words.weight

    def forward(self, index):
        return self.head(self.between(self.words(index)).tanh())


class Pair(nn.Module):
    """Two layers called one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))


def tied(first: nn.Module, second: nn.Module) -> Pair:
    second.weight = first.weight
    return Pair(first, second)


INDEX = torch.tensor([[0, 5, 23], [1, 0, 7]])


@pytest.mark.parametrize("config", [CP, TT, TTM])
@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_embedding_and_head_share_one_tensor(config, head_first, padding_idx):
    model = LanguageModel(padding_idx, head_first).double()
    with torch.no_grad():
        model.words.weight.copy_(noise(24, 12))  # as after training, when the padding row is no longer zero
    expected = model(INDEX)
    tensorize_(model, config(300), nn.Module, trained=True)
    assert model.words.tensor is model.head.tensor
    assert sum(isinstance(m, BayesianTensor) for m in model.modules()) == 2
    model.eval()
    torch.testing.assert_close(model(INDEX), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(model.head.weight, model.words.weight, rtol=0, atol=0)


def test_gradients_of_a_tied_model_are_those_of_the_tied_weight():
    torch.manual_seed(0)
    model = tensorize_(LanguageModel().double(), TTM(3, inference="fixed"), nn.Module)
    dense = to_dense(model)
    assert dense.head.weight is dense.words.weight
    model(INDEX).square().sum().backward()
    dense(INDEX).square().sum().backward()
    means = list(model.words.tensor.factors.mean)
    # chain rule by hand: dL/dG = Σ dL/dW · dW/dG, with dL/dW summed over both uses of the weight
    by_hand = torch.autograd.grad(model.words.tensor.matrix(), means, dense.words.weight.grad)
    for mean, expected in zip(means, by_hand, strict=True):
        torch.testing.assert_close(mean.grad, expected)


def test_two_linear_layers_share_one_tensor():
    model = tied(nn.Linear(12, 12, bias=False), nn.Linear(12, 12)).double()
    expected = model(noise(3, 12).double())
    tensorize_(model, CP(12), nn.Linear, trained=True)
    assert model.first.tensor is model.second.tensor
    torch.testing.assert_close(model.eval()(noise(3, 12).double()), expected)
    dense = to_dense(model)
    assert dense.first.weight is dense.second.weight
    torch.testing.assert_close(dense(noise(3, 12).double()), expected)


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: tied(nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, bias=False)), noise(2, 6, 5, 5)),
        (lambda: tied(nn.Conv1d(6, 6, 3, dilation=2), nn.Conv1d(6, 6, 3)), noise(2, 6, 12)),
    ],
)
def test_convolutions_share_one_tensor(build, x):
    model = tensorize_(build(), CP(4), nn.Module)
    assert model.first.tensor is model.second.tensor
    dense = to_dense(model.eval())
    assert dense.first.weight is dense.second.weight
    torch.testing.assert_close(model(x), dense(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding_bag_and_head(padding_idx):
    model = tied(nn.EmbeddingBag(24, 12, mode="sum", padding_idx=padding_idx), nn.Linear(12, 24)).double()
    with torch.no_grad():
        model.first.weight.copy_(noise(24, 12))
    index = torch.tensor([[0, 2, 5], [2, 2, 1]])
    expected = model(index)
    tensorize_(model, TT(300), nn.Module, trained=True)
    assert model.first.tensor is model.second.tensor
    torch.testing.assert_close(model.eval()(index), expected)
    dense = to_dense(model)
    assert dense.first.weight is dense.second.weight
    torch.testing.assert_close(dense(index), expected)


def test_dims_of_the_config_are_those_of_the_embedding():
    config = TTM(3, in_dims=(4, 6), out_dims=(4, 3))
    model = tensorize_(LanguageModel(), config, ["words", "head"])
    assert model.head.tensor.format.inputs.dims == (4, 6)
    assert model.head.config == config


def test_a_module_used_twice_is_replaced_by_one():
    layer = nn.Linear(12, 12)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    tensorize_(model, CP(2))
    assert model[0] is model[2]
    assert len(list(model.parameters())) == 2 * (2 + 1)
    dense = to_dense(model)
    assert dense[0] is dense[2]


def test_the_divergence_of_a_shared_tensor_counts_once():
    model = tensorize_(LanguageModel(), TTM(3), nn.Module)
    ranks = RankDetermination(model, torch.optim.Adam(param_groups(model)), num_data=10, total_steps=10)
    ranks.kl()
    parts = [model.words.tensor, model.between.tensor, model.between.bias_vector, model.head.bias_vector]
    assert ranks.terms()["kl_nats"] == pytest.approx(sum(part.kl().item() for part in parts), rel=1e-5)


def test_tied_layers_stay_tied_in_copies_and_states():
    torch.manual_seed(0)
    model = tensorize_(LanguageModel(), TTM(3), nn.Module)
    twin = copy.deepcopy(model)
    assert twin.words.tensor is twin.head.tensor is not model.head.tensor
    fresh = tensorize_(LanguageModel(), TTM(3), nn.Module)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.eval()(INDEX), model.eval()(INDEX), rtol=0, atol=0)


# Shared biases ----------------------------------------------------------------------------------------


def with_shared_bias() -> Pair:
    model = Pair(nn.Linear(12, 12), nn.Linear(12, 12))
    model.second.bias = model.first.bias
    return model


def test_two_layers_share_one_bias():
    model = tensorize_(with_shared_bias(), CP(2))
    assert model.first.bias_vector is model.second.bias_vector
    dense = to_dense(model)
    assert dense.first.bias is dense.second.bias
    torch.testing.assert_close(model.eval()(noise(3, 12)), dense(noise(3, 12)))


@pytest.mark.parametrize("chosen", ["first", "second"])
def test_a_bias_stays_shared_with_a_layer_that_stays_dense(chosen):
    model = with_shared_bias()
    before = model.first.bias.detach().clone()
    tensorize_(model, CP(2), chosen)
    other = model.second if chosen == "first" else model.first
    mean = model.get_submodule(chosen).bias_vector.entries.mean[0]
    assert other.bias is mean
    torch.testing.assert_close(mean.detach(), before)
    dense = to_dense(model)
    assert dense.first.bias is dense.second.bias


def test_masked_language_model_keeps_its_shared_bias():
    model = tensorize_(bert(), TTM(4))
    head = model.cls.predictions
    assert head.bias is head.decoder.bias_vector.entries.mean[0]
    dense = to_dense(model).cls.predictions
    assert dense.bias is dense.decoder.bias


# Refusals ---------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """A head that uses the embedding's weight without being a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(24, 12)
        self.out = nn.Parameter(torch.zeros(1))
        self.out = self.words.weight

    def forward(self, index):
        return self.words(index) @ self.out.T


class OwnForward(nn.Linear):
    def forward(self, x):
        return -super().forward(x)


def tied_lstm() -> nn.Module:
    model = Pair(nn.Linear(12, 48), nn.LSTM(12, 12))
    model.second.weight_ih_l0 = model.first.weight
    return model


def tied_conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return tied(nn.Embedding(24, 12), Conv1D(12, 24))


REFUSED = {
    "part of a set": (
        LanguageModel,
        {"filter_fn": "words"},
        r"shares one weight with others \(words, head\), .* head stays dense; choose all of them or none",
    ),
    "the other part": (LanguageModel, {"filter_fn": "head"}, "but words stays dense; choose all"),
    "one kept by overrides": (LanguageModel, {"overrides": {"head": None}}, "but head stays dense"),
    "other configs": (LanguageModel, {"overrides": {"head": CP(3)}}, "their configs differ; give all of them the same"),
    "a parameter elsewhere": (
        Functional,
        {},
        r"\(words, out\), .* but out cannot be tensorized; keep words, out dense",
    ),
    "a layer without a twin": (
        lambda: tied(nn.Linear(24, 24), nn.Bilinear(1, 1, 1)),
        {},
        "but second.weight cannot be tensorized",
    ),
    "a forward of its own": (
        lambda: tied(nn.Linear(24, 24), OwnForward(24, 24)),
        {},
        r"but second \(OwnForward has a forward of its own\) cannot be tensorized; keep first, second dense",
    ),
    "Conv1D and an embedding": (
        tied_conv1d,
        {},
        "layers of these types cannot share factors; keep first, second dense",
    ),
    "recurrent": (tied_lstm, {"filter_fn": nn.Module}, "cannot share factors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ties_that_would_come_apart_are_refused(name):
    build, arguments, message = REFUSED[name]
    model = build()
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=message):
        tensorize_(model, CP(2), **arguments)
    assert dict(model.named_modules()) == before


def test_tied_layers_kept_dense_are_left_alone():
    model = tensorize_(LanguageModel(), CP(2), "between")
    assert model.head.weight is model.words.weight


@pytest.mark.parametrize("build", [gpt2, bert])
def test_hugging_face_models_stay_tied(build):
    torch.manual_seed(0)
    model = tensorize_(build(), TTM(4))
    lookup, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert lookup.tensor is head.tensor
    dense = to_dense(model)
    assert dense.get_input_embeddings().weight is dense.get_output_embeddings().weight
    torch.testing.assert_close(model.eval()(tokens()).logits, dense.eval()(tokens()).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [gpt2, bert])
def test_hugging_face_ties_and_saves_by_the_new_names(build, tmp_path, caplog):
    torch.manual_seed(0)
    model = tensorize_(build(), TTM(4))
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    model.tie_weights()
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == before
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(name.startswith(("lm_head.tensor", "cls.predictions.decoder.tensor")) for name in stored) == 0
    fresh = tensorize_(build(), TTM(4))
    missing, unexpected = fresh.load_state_dict(stored, strict=False)
    assert set(missing) <= set(fresh.all_tied_weights_keys)
    assert not unexpected
    assert not caplog.records, "transformers warns of ties it does not know"
    torch.testing.assert_close(fresh.eval()(tokens()).logits, model.eval()(tokens()).logits, rtol=0, atol=0)


def encoder_decoder() -> nn.Module:
    """A model of models with ties of their own."""
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
    encoder = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    decoder = BertConfig(**encoder.to_diff_dict() | {"is_decoder": True, "add_cross_attention": True})
    return EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))


def translator(kind: str) -> nn.Module:
    """Marian says in ``__init__`` which of its weights are tied, Pegasus has models with ties in it."""
    import transformers

    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDE.items()}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, d_model=16, max_position_embeddings=16, pad_token_id=0, decoder_start_token_id=0, **sides
    )
    return getattr(transformers, "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration")(config)


SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
HUGGING_FACE = [gpt2, bert, encoder_decoder, partial(translator, "Marian"), partial(translator, "Pegasus")]


@pytest.mark.parametrize("build", HUGGING_FACE)
@pytest.mark.parametrize("chosen", [None, lambda _, name: name.endswith(("fc1", "c_fc", "intermediate.dense"))])
def test_the_dense_model_has_the_ties_it_had(build, chosen, tmp_path):
    model = tensorize_(build(), TTM(4), chosen)
    model.save_pretrained(tmp_path / "factors")
    dense = to_dense(model)
    assert dense.all_tied_weights_keys == build().all_tied_weights_keys
    dense.save_pretrained(tmp_path / "dense")


def test_a_dense_model_can_be_saved_and_loaded_as_any_other(tmp_path):
    dense = to_dense(tensorize_(bert(), TTM(4)))
    dense.save_pretrained(tmp_path)
    again = type(dense).from_pretrained(tmp_path)
    torch.testing.assert_close(again.eval()(tokens()).logits, dense.eval()(tokens()).logits, rtol=0, atol=0)
