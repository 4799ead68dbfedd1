"""Tensorized ``torch.nn.LSTM``, ``torch.nn.GRU`` and ``torch.nn.RNN``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast, final

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.utils.rnn import PackedSequence

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.bayesian_vector import BayesianVector
from rankfold.config import TensorConfig
from rankfold.layers.base import (
    TensorizedModule,
    check_input,
    copy_bias_,
    in_own_precision,
    like_dense,
    make_bias,
    posterior_mean,
    real_device,
    uniform_std,
    wrong_layer,
)

Hidden = Tensor | tuple[Tensor, Tensor]
States = tuple[Tensor, ...]  # (h,), for an LSTM (h, c)

_KERNELS: dict[str, Callable[..., States]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


@_disable_dynamo  # torch.compiler.disable, without importing the compiler before there is a call
def _run_kernel(mode: str, *arguments: Any) -> States:
    """torch.compile would unroll a recurrence over its time steps; as with torch.nn, it stays one eager call."""
    return _KERNELS[mode](*arguments)


@final
class Recurrent(TensorizedModule):
    """A recurrent layer of ``torch.nn`` whose matrices are all held as factors.

    Args:
        dense: the :class:`torch.nn.LSTM`, ``GRU`` or ``RNN`` to stand in for; one on the meta device will do.
        config: the format, rank limit and prior of every matrix.
        trained: start from the weights of ``dense``, decomposed.
        device: where to put it; the device of ``dense`` if left out.

    It is called like ``dense``, with tensors or packed sequences and an optional ``hx``, and returns the
    same. In training one sample of every matrix serves all time steps.

    Attributes:
        tensors: the matrices under the names ``dense`` has for them, such as ``weight_ih_l0``.
        vectors: the biases, likewise.

    >>> from rankfold.config import TTM
    >>> layer = Recurrent(nn.LSTM(50, 128, num_layers=2), TTM(max_rank=8))
    >>> output, (h, c) = layer(torch.randn(7, 3, 50))
    >>> output.shape, h.shape
    (torch.Size([7, 3, 128]), torch.Size([2, 3, 128]))
    """

    def __init__(
        self, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> None:
        super().__init__()
        if not isinstance(dense, nn.RNNBase):
            raise wrong_layer(dense, "a torch.nn.LSTM, GRU or RNN")
        self.config = config
        self.mode = dense.mode
        self.input_size = dense.input_size
        self.hidden_size = dense.hidden_size
        self.num_layers = dense.num_layers
        self.bias = dense.bias
        self.batch_first = dense.batch_first
        self.dropout = dense.dropout
        self.bidirectional = dense.bidirectional
        self.proj_size = dense.proj_size
        # in the order in which torch's kernels take them: those of one layer and direction after another
        self.names = tuple(name for name, _ in dense.named_parameters(remove_duplicate=False))
        self.tensors = nn.ModuleDict()
        self.vectors = nn.ModuleDict()
        for name, value in dense.named_parameters(remove_duplicate=False):
            if value.dim() == 2:
                self.tensors[name] = self._tensor(value, trained, device)
            else:
                self.vectors[name] = self._vector(value, device)

    def _tensor(self, weight: Tensor, trained: bool, device: torch.device | None) -> BayesianTensor:
        matrix = weight.T  # (I, J)
        config = like_dense(self.config, weight, uniform_std(self.hidden_size))
        return BayesianTensor(
            config.build(matrix.shape[0], matrix.shape[1]),
            config,
            config.init_std or uniform_std(self.hidden_size),
            matrix=matrix if trained else None,
            device=real_device(weight, device),
            dtype=weight.dtype,
        )

    def _vector(self, bias: Tensor, device: torch.device | None) -> BayesianVector:
        vector = make_bias(bias.numel(), self.hidden_size, self.config, real_device(bias, device), bias.dtype)
        copy_bias_(vector, bias)
        return vector

    # Running it -----------------------------------------------------------------------------------

    def forward(
        self, input: Tensor | PackedSequence, hx: Hidden | None = None
    ) -> tuple[Tensor | PackedSequence, Hidden]:
        states: States | None = (hx,) if isinstance(hx, Tensor) else hx
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, states)
        check_input(input)
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"expected input of shape (*, *, {self.input_size}), or (*, {self.input_size}) without a batch, "
                f"got {tuple(input.shape)}"
            )
        batch_axis, alone = (0 if self.batch_first else 1), input.dim() == 2
        if alone:
            input = input.unsqueeze(batch_axis)
            states = None if states is None else tuple(state.unsqueeze(1) for state in states)
        output, new = self._run(input, None, states, input.shape[batch_axis])
        if alone:
            output, new = output.squeeze(batch_axis), tuple(state.squeeze(1) for state in new)
        return output, self._hidden(new)

    def _forward_packed(self, packed: PackedSequence, states: States | None) -> tuple[PackedSequence, Hidden]:
        """A packed batch is sorted by length; states come and go in the caller's order."""
        if states is not None and packed.sorted_indices is not None:
            states = tuple(state.index_select(1, packed.sorted_indices) for state in states)
        output, new = self._run(packed.data, packed.batch_sizes, states, int(packed.batch_sizes[0]))
        if packed.unsorted_indices is not None:
            new = tuple(state.index_select(1, packed.unsorted_indices) for state in new)
        return packed._replace(data=output), self._hidden(new)

    def _run(
        self, input: Tensor, batch_sizes: Tensor | None, states: States | None, batch: int
    ) -> tuple[Tensor, States]:
        shapes = self._state_shapes(batch)
        if states is None:
            states = tuple(input.new_zeros(shape) for shape in shapes)
        if [tuple(state.shape) for state in states] != shapes:
            raise ValueError(f"expected hx of shape {shapes}, got {[tuple(state.shape) for state in states]}")
        weights = self.weights()
        flat = one_block(weights) if input.is_cuda else list(weights.values())
        output, *new = self._kernel(input, batch_sizes, states, flat)
        return output, tuple(new)

    def _kernel(self, input: Tensor, batch_sizes: Tensor | None, states: States, weights: list[Tensor]) -> States:
        start = states if self.mode == "LSTM" else states[0]
        options = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        if batch_sizes is None:
            return _run_kernel(self.mode, input, start, weights, *options, self.batch_first)
        return _run_kernel(self.mode, input, batch_sizes, start, weights, *options)

    def _state_shapes(self, batch: int) -> list[tuple[int, int, int]]:
        rows = self.num_layers * (2 if self.bidirectional else 1)
        h = (rows, batch, self.proj_size or self.hidden_size)
        return [h, (rows, batch, self.hidden_size)] if self.mode == "LSTM" else [h]

    def _hidden(self, states: States) -> Hidden:
        return (states[0], states[1]) if self.mode == "LSTM" else states[0]

    def weights(self) -> dict[str, Tensor]:
        """Every weight and bias in torch's layout, by name: samples in training, means in eval.

        They have the factors' dtype also under autocast, as the parameters of ``torch.nn`` do.
        """
        with in_own_precision(self._example().device):
            return {name: self._value(name) for name in self.names}

    def _value(self, name: str) -> Tensor:
        if name in self.tensors:
            return cast(BayesianTensor, self.tensors[name]).matrix().T
        return cast(BayesianVector, self.vectors[name]).forward()

    def _example(self) -> Tensor:
        return next(self.parameters())

    def flatten_parameters(self) -> None:
        """Nothing to do; it is here because code written for ``torch.nn`` calls it."""

    # From and to torch.nn -------------------------------------------------------------------------

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        return cls(dense, config, trained=trained, device=device)

    def to_dense(self) -> nn.RNNBase:
        with torch.no_grad(), posterior_mean(self):
            weights = self.weights()
            dense = self._plain()
            for name, parameter in dense.named_parameters():
                parameter.copy_(weights[name])
        return dense

    def _plain(self) -> nn.RNNBase:
        """A ``torch.nn`` layer of the same kind with any weights."""
        options: dict[str, Any] = {
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "bias": self.bias,
            "batch_first": self.batch_first,
            "bidirectional": self.bidirectional,
            "device": self._example().device,
            "dtype": self._example().dtype,
        }
        dense: nn.RNNBase
        if self.mode == "LSTM":
            dense = nn.LSTM(**options, proj_size=self.proj_size)
        elif self.mode == "GRU":
            dense = nn.GRU(**options)
        else:
            dense = nn.RNN(**options, nonlinearity="relu" if self.mode == "RNN_RELU" else "tanh")
        dense.dropout = self.dropout  # given to the constructor of a single layer, it would warn
        return dense.train(self.training)

    def extra_repr(self) -> str:
        options = {
            "proj_size": (self.proj_size, 0),
            "num_layers": (self.num_layers, 1),
            "bias": (self.bias, True),
            "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0),
            "bidirectional": (self.bidirectional, False),
        }
        given = "".join(f", {name}={value}" for name, (value, default) in options.items() if value != default)
        return f"{self.mode}, {self.input_size}, {self.hidden_size}{given}"

    def __repr__(self) -> str:
        mode = "" if self.config.inference == "bayes" else f", {self.config.inference}"
        lines = [f"  ({name}): {tensor.format}" for name, tensor in self.tensors.items()]
        return "\n".join([f"Recurrent({self.extra_repr()}{mode}", *lines, ")"])


def one_block(weights: dict[str, Tensor]) -> list[Tensor]:
    """The weights in their order, as views of one block of memory that holds all matrices before all biases.

    That is how cuDNN wants them; otherwise it copies them at every call, and warns. Where there are no
    biases, it still wants room for two of zeros beside every layer and direction.
    """
    in_memory = sorted(weights, key=lambda name: name.startswith("bias"))
    parts = [weights[name].reshape(-1) for name in in_memory]
    if "bias_ih_l0" not in weights:
        gates = sum(weight.shape[0] for name, weight in weights.items() if name.startswith("weight_ih"))
        parts.append(parts[0].new_zeros(2 * gates))
    pieces = torch.split(torch.cat(parts), [part.numel() for part in parts])
    views = {name: piece.view(weights[name].shape) for name, piece in zip(in_memory, pieces, strict=False)}
    return [views[name] for name in weights]
