"""Which layers are chosen, and what happens to misspelt wishes."""

import pytest
from models import encoder, gpt2, mlp
from torch import nn

import rankfold as rf
from rankfold.config import CP, TT, TTM
from rankfold.surgery.selection import choose


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Renamed(nn.Linear):
    """A subclass that keeps forward."""


class Elsewhere(nn.Module):
    """A type that is neither torch's nor in the model, as in a filter made for several models."""


def net() -> nn.Module:
    return nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Renamed(8, 8)),
            "decoder": nn.Sequential(nn.Linear(8, 8), Doubled(8, 8)),
            "words": nn.Embedding(20, 8),
            "bags": nn.EmbeddingBag(20, 8),
            "memory": nn.LSTM(8, 8),
        }
    )


def chosen(filter_fn=None, config=CP(2), overrides=None, model=None) -> dict:  # noqa: B008
    choices = choose(net() if model is None else model, config, filter_fn, overrides)
    return {choice.layer.name: choice.config for choice in choices if choice.config is not None}


LINEAR = {"encoder.0", "encoder.2", "decoder.0"}


@pytest.mark.parametrize(
    ("filter_fn", "names"),
    [
        (None, LINEAR | {"words", "bags"}),
        (nn.Linear, LINEAR),
        (Renamed, {"encoder.2"}),
        (nn.Module, LINEAR | {"words", "bags", "memory"}),
        ((nn.Embedding, nn.EmbeddingBag), {"words", "bags"}),
        ("encoder.?", {"encoder.0", "encoder.2"}),
        ("encoder.0", {"encoder.0"}),
        ("*coder.0", {"encoder.0", "decoder.0"}),
        (["words", "decoder.*"], {"words", "decoder.0"}),
        ([nn.Embedding, "decoder.*"], {"words", "decoder.0"}),
        (nn.LSTM, {"memory"}),
        ("memory", {"memory"}),
        (lambda module, name: name.endswith("0"), {"encoder.0", "decoder.0"}),
        (lambda module, name: isinstance(module, nn.Embedding), {"words"}),
        (lambda module, name: True, LINEAR | {"words", "bags", "memory"}),
        ((nn.RNNBase, nn.Conv2d), {"memory"}),
        ((nn.Embedding, Elsewhere), {"words"}),
    ],
)
def test_filters(filter_fn, names):
    assert set(chosen(filter_fn)) == names


def test_a_predicate_sees_the_module_and_its_name():
    model, seen = net(), []
    choose(model, CP(2), lambda module, name: seen.append((module, name)) or True, None)
    assert all(model.get_submodule(name) is module for module, name in seen)


def test_the_last_matching_override_wins_and_none_keeps_dense():
    overrides = {"*": TT(3), "encoder.*": TTM(4), "encoder.2": None}
    assert chosen(nn.Embedding, CP(2), overrides) == {
        "encoder.0": TTM(4),
        "decoder.0": TT(3),
        "words": TT(3),
        "bags": TT(3),
        "memory": TT(3),
    }


def test_overrides_alone_are_enough():
    assert chosen(None, None, {"words": CP(7)}) == {"words": CP(7)}


def test_conv1d_of_transformers_counts_as_linear():
    names = set(chosen(nn.Linear, model=gpt2()))
    assert {"transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj", "lm_head"} <= names
    assert "transformer.wte" not in names


def test_subclasses_of_torch_that_keep_forward_count():
    assert "layers.0.self_attn.out_proj" in chosen(nn.Linear, model=encoder())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("decoder.1", "Doubled has a forward of its own"),
        ("memory", "recurrent layers must be chosen by filter_fn or overrides"),
    ],
)
def test_reasons_to_stay_dense(name, reason):
    assert {c.layer.name: c.reason for c in choose(net(), CP(2), None, None)}[name] == reason


def test_a_forward_replaced_on_the_instance_is_respected():
    model = mlp()
    model[1].forward = lambda x: x
    assert set(chosen(nn.Linear, model=model)) == {"3"}


def test_layers_that_are_tensorized_already_are_passed_over():
    model = nn.Sequential(rf.Linear(8, 8, config=CP(2)), nn.Linear(8, 8))
    assert set(chosen(nn.Linear, model=model)) == {"1"}


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("encoder.1", "it names a ReLU, which is not supported; supported are "),
        ("encoder", r"it names a Sequential; for the layers in it use 'encoder\.\*'"),
        ("wrods", "did you mean 'words'"),
        ("encoder.9", "did you mean 'encoder.[02]' or"),
        ("zzz", r"the layers are \['encoder.0', 'encoder.2', 'decoder.0', 'decoder.1', 'words', 'bags', 'memory'\]"),
    ],
)
@pytest.mark.parametrize("where", ["filter_fn", "in a sequence", "overrides", "overrides to keep"])
def test_names_of_no_layer(wish, message, where):
    arguments = {
        "filter_fn": {"filter_fn": wish},
        "in a sequence": {"filter_fn": [nn.Linear, wish]},
        "overrides": {"overrides": {wish: CP(3)}},
        "overrides to keep": {"overrides": {wish: None}},
    }[where]
    with pytest.raises(ValueError, match=f"'{wish}' matches no layer that can be tensorized: {message}"):
        chosen(**arguments)


def test_many_layers_are_not_all_listed():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))
    with pytest.raises(ValueError, match="'7'] and 22 more"):
        chosen("zzz", model=model)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": CP}, TypeError, "a config must be an instance such as .*, got <class 'rankfold.config.CP'>"),
        ({"overrides": {"words": 8}}, TypeError, "a config must be an instance such as .*, got 8"),
        ({"overrides": {3: CP(2)}}, TypeError, "keyed by layer names or patterns, got 3"),
        ({"config": None}, ValueError, "config is None; give one"),
        (
            {"config": None, "filter_fn": nn.Linear, "overrides": {"words": CP(2)}},
            ValueError,
            "chooses 'encoder.0', but config is None and no override names it",
        ),
        ({"filter_fn": 3}, TypeError, "filter_fn must be a predicate .* got 3"),
        (
            {"filter_fn": nn.ReLU},
            ValueError,
            "filter_fn names ReLU, a type that is not supported; supported are Linear,",
        ),
        ({"filter_fn": [nn.Linear, nn.Conv3d]}, ValueError, "names Conv3d, a type that is not supported"),
        (
            {"filter_fn": "0", "model": nn.Sequential(rf.Linear(8, 8, config=CP(2)), nn.Linear(8, 8))},
            ValueError,
            "'0' matches no layer that can be tensorized: it is tensorized already",
        ),
        ({"filter_fn": [nn.Linear, 3]}, TypeError, "holds name patterns or module types, got 3"),
        ({"filter_fn": [nn.Linear, int]}, TypeError, "holds name patterns or module types, got <class 'int'>"),
        ({"model": nn.Linear(3, 3)}, ValueError, r"cannot be replaced in place; use rankfold\.Linear\.from_dense"),
        ({"model": nn.Embedding(3, 3)}, ValueError, r"use rankfold\.Embedding\.from_dense"),
        ({"model": rf.Linear(3, 3, config=CP(2))}, ValueError, "is a Linear of rankfold already"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        chosen(**arguments)
