"""A whole training step as one CUDA graph.

Small tensorized models spend most of a step launching tiny kernels. A captured graph launches them
all at once. Ranks change shapes, so the graph is captured again after every pruning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from rankfold.rank_determination import RankDetermination

# Steps run as they are before a capture, so that lazy initialisation is over by then.
_WARMUP_STEPS = 3

_Kind = tuple[tuple[torch.Size, torch.dtype], ...]


@final
class CapturedStep:
    """Calls ``step(*inputs)``, on CUDA as a captured graph.

    ``step`` is an ordinary training step: it ends with ``optimizer.zero_grad()`` and ``ranks.step()``. It
    must not wait for the device (no ``.item()``, no printing), its inputs must keep their shapes, and the
    optimizer must be capturable, with its learning rate on the device:
    ``Adam(groups, lr=torch.tensor(2e-3), capturable=True)``.
    On the CPU, and for inputs of another shape (a last, smaller batch) or dtype, it simply runs.

    >>> import rankfold as rf
    >>> model = rf.Linear(8, 6, config=rf.CP(max_rank=3))
    >>> optimizer = torch.optim.Adam(rf.param_groups(model))
    >>> ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=10)
    >>> def step(x):
    ...     loss = model(x).square().mean() + ranks.kl()
    ...     loss.backward(); optimizer.step(); optimizer.zero_grad(); ranks.step()
    ...     return loss.detach()
    >>> captured = rf.CapturedStep(step, ranks)
    >>> loss = captured(torch.randn(5, 8))

    Args:
        step: takes tensors on the model's device, returns a tensor such as the loss.
        ranks: the rank determination the step calls; ``None`` if there are no ranks to find.
    """

    def __init__(self, step: Callable[..., Tensor], ranks: RankDetermination | None = None) -> None:
        if not callable(step):
            raise TypeError(f"step must be a function that runs one training step, got {step!r}")
        if ranks is not None and not isinstance(ranks, RankDetermination):
            raise TypeError(f"ranks must be a rankfold.RankDetermination, or None, got {ranks!r}")
        self._step = step
        self._ranks = ranks
        self._stream: torch.cuda.Stream | None = None
        self._forget()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Run one training step; the returned tensor is overwritten by the next call."""
        if not inputs or not all(isinstance(x, Tensor) for x in inputs):
            raise TypeError(f"a step is called with tensors, got {[type(x).__name__ for x in inputs]}")
        if self._version != self._current_version():
            self._forget()
        kind = _kind(inputs)
        if not inputs[0].is_cuda or (self._graph is not None and kind != _kind(self._inputs)):
            return self._step(*inputs)
        if self._graph is None and self._runs[kind] < _WARMUP_STEPS:
            self._runs[kind] += 1
            return self._run_beside(inputs)
        if self._graph is None:
            self._capture(inputs)
        return self._replay(inputs)

    def _forget(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)
        self._runs: Counter[_Kind] = Counter()  # a last, smaller batch counts for itself
        self._version = self._current_version()

    def _current_version(self) -> int:
        return 0 if self._ranks is None else self._ranks.version

    def _run_beside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run on a side stream, as a capture asks for; always the same one, as memory is cached for each by itself."""
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = self._step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return output

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = self._step(*self._inputs)
        self._graph = graph

    def _replay(self, inputs: tuple[Tensor, ...]) -> Tensor:
        assert self._graph is not None
        for static, new in zip(self._inputs, inputs, strict=True):
            static.copy_(new)
        self._graph.replay()
        if self._ranks is not None:
            self._ranks.advance()
        return self._output


def _kind(inputs: tuple[Tensor, ...]) -> _Kind:
    """Shapes and dtypes; a graph would convert what inputs of another dtype hold."""
    return tuple((x.shape, x.dtype) for x in inputs)
