"""A copy of a model with nothing in it but its posterior mean: what is exported."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.bayesian_vector import BayesianVector
from rankfold.export.layouts import Layout, laid_out
from rankfold.health import first_of, not_finite
from rankfold.layers import Embedding, EmbeddingBag
from rankfold.layers.base import in_own_precision
from rankfold.layers.row_checks import check_index
from rankfold.posterior import PointPosterior
from rankfold.wrapping import check_values, unwrapped


class ExportError(RuntimeError):
    """A model that cannot be exported, or a file that does not compute what the model does."""


def posterior_mean_copy(model: nn.Module, layout: Layout = "factors") -> nn.Module:
    """``model`` on the CPU, in eval mode, with the means alone: no log-stds, no λ. The model is not changed.

    Args:
        layout: how the weights are held.
    """
    model = unwrapped(model)
    check_values(model.named_parameters(), "export")
    copied = laid_out(model, layout).cpu().eval().requires_grad_(False)
    for module in list(copied.modules()):
        if isinstance(module, BayesianTensor):
            module.factors = PointPosterior(module.factors.mean)
            del module.variance, module.count
        elif isinstance(module, BayesianVector):
            module.entries = PointPosterior(module.entries.mean)
    _check_finite(copied)
    return _with_plain_lookups(copied)


def _check_finite(mean: nn.Module) -> None:
    """Refuse a model that training has broken; a buffer may hold what it likes, such as a mask of -inf."""
    if broken := not_finite(mean.named_parameters()):
        raise ExportError(
            f"nothing was exported: the model holds NaN or infinity in {first_of(broken)}. Load an earlier "
            f"checkpoint, or go back with ranks.restore() and train on with a lower learning rate or clipped gradients"
        )


class Rows(nn.Module):
    """An embedding as gathers and contractions alone.

    In training the layer looks at how many rows it is asked for; a program for all batches cannot.

    Shape: indices (*) to (*, J).
    """

    def __init__(self, layer: Embedding) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, index: Tensor) -> Tensor:
        rows = _rows_of(self.layer, index)
        padding = self.layer.padding_idx
        return rows if padding is None else rows * (index != padding)[..., None].to(rows.dtype)


class Bags(nn.Module):
    """An embedding bag as a gather and a sum.

    Exporters turn ``embedding_bag`` into a loop over the bags, and with padding they fix their number.

    Shape: indices (B, N) to (B, J), with weights (B, N) if the mode is ``"sum"``.
    """

    def __init__(self, layer: EmbeddingBag | nn.EmbeddingBag) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, index: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if offsets is not None or index.dim() != 2:
            raise ValueError(
                "an embedding bag can be exported only with indices (B, N) and no offsets; "
                "pad the bags to one length and give the layer a padding_idx"
            )
        rows = self._rows(index)  # (B, N, J)
        counted = torch.ones_like(index, dtype=rows.dtype)  # (B, N)
        if self.layer.padding_idx is not None:
            counted = (index != self.layer.padding_idx).to(rows.dtype)
        weights = counted if per_sample_weights is None else counted * per_sample_weights
        total = (rows * weights[:, :, None]).sum(1)
        # a bag of nothing but padding is 0
        return total / counted.sum(1, keepdim=True).clamp(min=1.0) if self.layer.mode == "mean" else total

    def _rows(self, index: Tensor) -> Tensor:
        if isinstance(self.layer, nn.EmbeddingBag):
            return F.embedding(index, self.layer.weight)
        return _rows_of(self.layer, index)


def _rows_of(layer: Embedding | EmbeddingBag, index: Tensor) -> Tensor:
    """``A[index]``: index (*) to (*, J). Indices of the example are checked, later ones are not."""
    if not torch.compiler.is_exporting():
        check_index(index, layer.num_embeddings)
    with in_own_precision(index.device):
        return layer.tensor.rows(index.reshape(-1)).reshape(*index.shape, layer.embedding_dim)


def _with_plain_lookups(model: nn.Module) -> nn.Module:
    """Put :class:`Rows` around all tensorized embeddings, and :class:`Bags` around bags that sum or average."""
    root = _plain_lookup(model)
    for parent in list(root.modules()):
        if isinstance(parent, Rows | Bags):
            continue
        for name, child in parent._modules.items():  # every name of a shared one
            if child is not None:
                setattr(parent, name, _plain_lookup(child))
    return root


def _plain_lookup(module: nn.Module) -> nn.Module:
    if isinstance(module, Embedding):
        return Rows(module)
    if isinstance(module, EmbeddingBag):
        return Bags(module)
    if isinstance(module, nn.EmbeddingBag) and module.mode in ("sum", "mean") and module.max_norm is None:
        return Bags(module)
    return module
