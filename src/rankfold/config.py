"""What a user asks for: a format, a rank limit, a prior. Shapes come later, from the layer.

Configs are frozen and typed; a misspelt option is an error. ``config.build(I, J)`` turns one into a
:class:`~rankfold.formats.TensorFormat` for a matrix of ``I`` inputs and ``J`` outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, final

from rankfold import formats
from rankfold.priors import LogUniform, ShrinkagePrior
from rankfold.shapes import Folding, fold, is_number, is_positive_integer

Inference = Literal["bayes", "map", "fixed"]


@dataclass(frozen=True)
class TensorConfig(ABC):
    """Options shared by all formats.

    Args:
        max_rank: the rank to start from, one for all or one per rank of the format.
        in_dims, out_dims: the modes of the input and output side; folded automatically if left out.
        order: how many modes each side gets when folded automatically.
        max_padding: the most padding that automatic folding may add, as a share of the size.
        prior: :class:`~rankfold.LogUniform` or :class:`~rankfold.HalfCauchy`.
        inference: ``"bayes"`` (Gaussian factors), ``"map"`` (point factors, λ kept) or
            ``"fixed"`` (point factors, no prior: plain tensorized training at ``max_rank``).
        init_std: standard deviation of the initial weights; the layer's own default if left out.
        equal_rows: start with all rows of an embedding table equal, instead of independent. Every mode then learns
            first what its index means whatever the others are. Much faster where indices of the modes mean something
            by themselves; no use where row numbers are arbitrary, as those of words or of hashed values are.
        weak_std: σ₀ of the weak normal prior on biases and on a Tucker core.

    >>> config = TTM(max_rank=20, in_dims=(28, 28), out_dims=(16, 32))
    >>> config.build(784, 512).ranks  # of a matrix A (784, 512)
    (20,)
    """

    max_rank: int | tuple[int, ...]
    in_dims: tuple[int, ...] | None = field(default=None, kw_only=True)
    out_dims: tuple[int, ...] | None = field(default=None, kw_only=True)
    order: int | None = field(default=None, kw_only=True)
    max_padding: float = field(default=0.05, kw_only=True)
    prior: ShrinkagePrior = field(default_factory=LogUniform, kw_only=True)
    inference: Inference = field(default="bayes", kw_only=True)
    init_std: float | None = field(default=None, kw_only=True)
    equal_rows: bool = field(default=False, kw_only=True)
    weak_std: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("max_rank", "in_dims", "out_dims"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for rank in self.max_rank if isinstance(self.max_rank, tuple) else (self.max_rank,):
            if not is_positive_integer(rank):
                raise ValueError(f"max_rank must be a positive integer, got {rank!r}")
        self._check_folding()
        if self.inference not in ("bayes", "map", "fixed"):
            raise ValueError(f"inference must be 'bayes', 'map' or 'fixed', got {self.inference!r}")
        if not isinstance(self.prior, ShrinkagePrior):
            raise TypeError(f"prior must be rankfold.LogUniform() or rankfold.HalfCauchy(), got {self.prior!r}")
        for name, value in (("init_std", 1.0 if self.init_std is None else self.init_std), ("weak_std", self.weak_std)):
            if not (is_number(value) and 0 < value < math.inf):
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
            if getattr(self, name) is not None:  # files know no number of NumPy's
                object.__setattr__(self, name, float(value))
        if not isinstance(self.equal_rows, bool):
            raise TypeError(f"equal_rows must be True or False, got {self.equal_rows!r}")

    def _check_folding(self) -> None:
        for name, dims in (("in_dims", self.in_dims), ("out_dims", self.out_dims)):
            if dims is not None and not (isinstance(dims, tuple) and dims and all(map(is_positive_integer, dims))):
                raise ValueError(f"{name} must be a tuple of positive integers, got {dims!r}")
        if self.order is not None and not is_positive_integer(self.order):
            raise ValueError(f"order must be a positive integer, got {self.order!r}")
        if not (is_number(self.max_padding) and 0 <= self.max_padding <= 1):
            raise ValueError(f"max_padding must lie between 0 and 1 (0.05 allows 5 %), got {self.max_padding!r}")

    def build(self, in_size: int, out_size: int, *, kernel_size: int = 1) -> formats.TensorFormat:
        """The format of a matrix of ``in_size · kernel_size`` inputs and ``out_size`` outputs.

        The positions of a convolution kernel stay one whole mode, after those of the input channels.
        """
        inputs, outputs = self._fold(in_size, out_size)
        if kernel_size > 1:
            inputs = Folding(in_size * kernel_size, (*inputs.dims, kernel_size))
            outputs = self._beside_kernel(outputs)
        count = self._format.num_ranks(inputs, outputs)
        ranks = self.max_rank if isinstance(self.max_rank, tuple) else (self.max_rank,) * count
        return self._format(inputs, outputs, ranks)

    @property
    @abstractmethod
    def _format(self) -> type[formats.TensorFormat]:
        """The format this config asks for."""

    def _fold(self, in_size: int, out_size: int) -> tuple[Folding, Folding]:
        return (
            fold(in_size, self.order or default_order(in_size), self.max_padding, self.in_dims),
            fold(out_size, self.order or default_order(out_size), self.max_padding, self.out_dims),
        )

    def _beside_kernel(self, outputs: Folding) -> Folding:
        return outputs


@final
@dataclass(frozen=True)
class CP(TensorConfig):
    """CP format: one rank, the smallest models.

    >>> CP(max_rank=50, in_dims=(28, 28), out_dims=(16, 32)).build(784, 512).num_entries
    5200
    """

    @property
    def _format(self) -> type[formats.TensorFormat]:
        return formats.CP


@final
@dataclass(frozen=True)
class Tucker(TensorConfig):
    """Tucker format: one rank per mode, and a core that grows with their product.

    >>> Tucker(max_rank=5, in_dims=(28, 28), out_dims=(16, 32)).build(784, 512).factor_shapes
    ((28, 5), (28, 5), (16, 5), (32, 5), (5, 5, 5, 5))
    """

    @property
    def _format(self) -> type[formats.TensorFormat]:
        return formats.Tucker


@final
@dataclass(frozen=True)
class TT(TensorConfig):
    """Tensor-train format: one rank between every two neighbouring modes.

    >>> TT(max_rank=5, in_dims=(28, 28), out_dims=(16, 32)).build(784, 512).factor_shapes
    ((1, 28, 5), (5, 28, 5), (5, 16, 5), (5, 32, 1))
    """

    @property
    def _format(self) -> type[formats.TensorFormat]:
        return formats.TensorTrain


@final
@dataclass(frozen=True)
class TTM(TensorConfig):
    """Tensor-train matrix: every core carries an input and an output mode. A good first choice.

    >>> TTM(max_rank=5, in_dims=(28, 28), out_dims=(16, 32)).build(784, 512).factor_shapes
    ((1, 28, 16, 5), (5, 28, 32, 1))
    """

    @property
    def _format(self) -> type[formats.TensorFormat]:
        return formats.TensorTrainMatrix

    def _fold(self, in_size: int, out_size: int) -> tuple[Folding, Folding]:
        given = [len(dims) for dims in (self.in_dims, self.out_dims) if dims is not None]
        order = self.order or (given[0] if given else default_pairs(in_size, out_size))
        inputs = fold(in_size, order, self.max_padding, self.in_dims)
        outputs = fold(out_size, order, self.max_padding, self.out_dims)
        if self.out_dims is None:  # pair large with small, so that the cores are of similar size
            outputs = Folding(out_size, outputs.dims[::-1])
        return inputs, outputs

    def _beside_kernel(self, outputs: Folding) -> Folding:
        return Folding(outputs.size, (*outputs.dims, 1))


def check_config(config: object) -> None:
    """Refuse anything but a config, such as the name of a format."""
    if not isinstance(config, TensorConfig):
        raise TypeError(f"a config must be an instance such as rankfold.TTM(max_rank=20), got {config!r}")


def default_order(size: int) -> int:
    """How many modes a side of ``size`` gets: modes of about 24, at most three."""
    return min(3, max(1, round(math.log(size) / math.log(24))))


def default_pairs(in_size: int, out_size: int) -> int:
    """How many mode pairs a TTM gets: modes of about 6, two to four pairs."""
    return min(4, max(2, round(0.5 * math.log(in_size * out_size) / math.log(6))))
