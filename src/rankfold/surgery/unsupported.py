"""Layers of torch.nn with weights that cannot be tensorized, so that a plan does not pass over them in silence."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.parameter import is_lazy

from rankfold.health import first_of

_TYPES = (nn.Conv3d, _ConvTransposeNd, nn.RNNCellBase, nn.Bilinear, nn.MultiheadAttention)
_NAMES_SHOWN = 4


def unsupported_notes(model: nn.Module) -> Iterator[str]:
    """One note for every type of such layers in ``model``, with their names and the number of their parameters."""
    by_type: dict[str, dict[str, nn.Module]] = {}
    for name, module in model.named_modules():
        if isinstance(module, _TYPES):
            by_type.setdefault(type(module).__name__, {})[name] = module
    for kind, found in by_type.items():
        names = first_of([name or "the model" for name in found], _NAMES_SHOWN)
        yield f"{names}: {_verdict(kind, list(found.values()))}"


def _verdict(kind: str, modules: list[nn.Module]) -> str:
    # the output projection of attention is a layer of its own, with its own row
    size = sum(p.numel() for m in modules for p in m._parameters.values() if p is not None and not is_lazy(p))
    what = "input projections (in_proj)" if isinstance(modules[0], nn.MultiheadAttention) else "layers"
    return f"{kind} {what} are not supported and stay dense, {size:,} parameters"
