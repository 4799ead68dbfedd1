"""What keeps a layer from being replaced."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from rankfold.surgery.dense_layers import dense_layers, obstacle


def parametrized() -> nn.Module:
    return parametrizations.orthogonal(nn.Linear(6, 6))


def pruned(name: str) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(6, 6), name, 0.5)


def weight_normed() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(nn.Linear(6, 6))


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)
        self.scale = nn.Parameter(torch.ones(1))


def with_gradient_hook(name: str) -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.get_parameter(name).register_hook(lambda grad: grad)
    return layer


def with_accumulation_hook() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return layer


def with_state_dict_hook() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_state_dict_pre_hook(lambda *_: None)
    return layer


REFUSED = {
    "parametrized": (parametrized, "remove_parametrizations"),
    "pruned weight": (lambda: pruned("weight"), "prune.remove"),
    "pruned bias": (lambda: pruned("bias"), "prune.remove"),
    "spectral norm": (lambda: spectral_norm(nn.Linear(6, 6)), "remove_spectral_norm"),
    "weight norm": (weight_normed, "remove_weight_norm"),
    "extra parameter": (Extra, r"its parameters are \['bias', 'scale', 'weight'\], where a plain Linear has"),
    "lazy": (lambda: nn.LazyLinear(6), "run the model once first"),
    "lazy convolution": (lambda: nn.LazyConv2d(6, 3), "run the model once first"),
    "complex": (lambda: nn.Linear(6, 6, dtype=torch.complex64), "its dtype torch.complex64 is not supported"),
    "hook on weight": (lambda: with_gradient_hook("weight"), "its weight has a gradient hook"),
    "hook on bias": (lambda: with_gradient_hook("bias"), "its bias has a gradient hook"),
    "accumulation hook": (with_accumulation_hook, "its weight has a gradient hook"),
    "state_dict hook": (with_state_dict_hook, "it has state_dict hooks"),
    "max_norm": (lambda: nn.Embedding(9, 4, max_norm=2.0), "max_norm is not supported, got 2.0"),
    "scale_grad_by_freq": (lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), "scale_grad_by_freq=True is not"),
    "sparse": (lambda: nn.Embedding(9, 4, sparse=True), "sparse=True is not supported"),
    "sparse bag": (lambda: nn.EmbeddingBag(9, 4, sparse=True), "sparse=True is not supported"),
    "max_norm bag": (lambda: nn.EmbeddingBag(9, 4, max_norm=2.0), "max_norm is not supported"),
    "max bag": (lambda: nn.EmbeddingBag(9, 4, mode="max"), "mode='max' is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_obstacles(name):
    build, message = REFUSED[name]
    (layer,) = dense_layers(nn.Sequential(build()))
    with pytest.raises(ValueError, match=message):
        raise ValueError(obstacle(layer))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 6, bias=False),
        nn.Linear(6, 6, dtype=torch.bfloat16),
        nn.Embedding(9, 4, padding_idx=0),
        nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True),
        nn.Conv1d(4, 6, 3, groups=2, padding_mode="circular"),
        nn.Conv2d(4, 6, 3, bias=False, padding="same"),
    ],
)
def test_no_obstacle(layer):
    (found,) = dense_layers(nn.Sequential(layer))
    assert obstacle(found) == ""
    (matrix,) = found.matrices
    assert matrix.in_size * matrix.kernel_size * matrix.out_size == layer.weight.numel()
    assert (matrix.bias is None) == (getattr(layer, "bias", None) is None)


def test_every_layer_is_found_once_under_all_its_names():
    shared = nn.Linear(3, 3)
    model = nn.ModuleDict({"a": nn.Sequential(shared, shared), "b": shared, "c": nn.Linear(3, 3)})
    assert [layer.names for layer in dense_layers(model)] == [("a.0", "a.1", "b"), ("c",)]


def test_other_convolutions_are_not_mistaken():
    model = nn.Sequential(nn.Conv3d(2, 2, 3), nn.ConvTranspose2d(2, 2, 3), nn.Bilinear(2, 2, 2), nn.LSTMCell(2, 2))
    assert dense_layers(model) == []
