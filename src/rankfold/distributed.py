"""Training in several processes.

Every process holds all factors: they are small, and only their gradients travel. Each process draws
its own noise, so that p processes average p samples of the posterior in one step; λ, β and ranks
follow from parameters that are equal everywhere, and so are equal everywhere too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.bayesian_vector import BayesianVector
from rankfold.wrapping import check_model

if TYPE_CHECKING:  # some builds of torch have no processes
    from torch.distributed import ProcessGroup

Model = TypeVar("Model", bound=nn.Module)

# λ of one model differ between processes by less than this, relative to their mean, on unlike hardware too.
_ROUNDING = 1e-3

# What nn.Module keeps beside its parts, and DDP's own constructor would empty.
_KEPT = (
    "training",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def rewrap(model: Model) -> Model:
    """Let DDP lay out its communication again, after pruning has changed shapes; in place.

    DDP arranges buckets of gradients once, for the shapes it sees when it is made. All processes prune at
    the same step, so all of them call this at the same step::

        if ranks.step():
            rankfold.rewrap(model)

    The wrapper stays the same object, with its hooks, so whoever holds it (Accelerate, a Trainer) goes on
    using it. A model without DDP in it is left alone.

    Returns:
        ``model`` itself.

    >>> model = nn.Linear(8, 6)
    >>> rewrap(model) is model
    True
    """
    check_model(model)
    for part in list(model.modules()):
        if isinstance(part, DistributedDataParallel):
            _lay_out_again(part)
    return model


def _lay_out_again(ddp: DistributedDataParallel) -> None:
    if ddp.mixed_precision is not None or ddp._delay_all_reduce_params:
        raise NotImplementedError(
            "DDP with mixed_precision= or delay_all_reduce_named_params= cannot be laid out again after pruning; use "
            "torch.autocast instead, or prune at the end only, with pruning=rankfold.Pruning(at=(1.0,))"
        )
    # DDP keeps most of its options under their own names; which they are differs between releases
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    options = {name: vars(ddp)[name] for name in names if name in vars(ddp)}
    if options.get("device_mesh") is not None:
        del options["process_group"]  # DDP takes one of the two
    if not ddp.bucket_bytes_cap_default:
        options["bucket_cap_mb"] = ddp.bucket_bytes_cap / 2**20
    kept, comm_hooks = {name: vars(ddp)[name] for name in _KEPT}, list(ddp._comm_hooks)
    DistributedDataParallel.__init__(ddp, ddp.module, **options)
    vars(ddp).update(kept)
    for hook, state in comm_hooks:
        ddp.register_comm_hook(state, hook)


# Without DDP ------------------------------------------------------------------------------------------


def tensorized_parameters(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of all tensorized weights and their biases: what FSDP2 should leave whole.

    ::

        fully_shard(model, ignored_params=rankfold.distributed.tensorized_parameters(model))

    >>> import rankfold as rf
    >>> model = nn.Sequential(rf.Linear(8, 6, config=rf.CP(max_rank=2)), nn.Linear(6, 2))
    >>> len(tensorized_parameters(model)), len(list(model.parameters()))  # the dense layer has two
    (6, 8)
    """
    check_model(model)
    parts = (m for m in model.modules() if isinstance(m, BayesianTensor | BayesianVector))
    return {parameter for part in parts for parameter in part.parameters()}


@torch.no_grad()
def replicate_(model: nn.Module, process_group: ProcessGroup | None = None) -> None:
    """Give every process the factors, biases and λ of the first one; call it once, before training.

    DDP does this by itself. Shapes must be the same everywhere::

        model = rankfold.tensorize_(make_model(), rankfold.TTM(max_rank=16))  # its own random factors
        rankfold.distributed.replicate_(model)
    """
    lambdas = [tensor.variance for tensor in tensors_of(model).values()]
    for values in (*_in_order(model), *lambdas):
        dist.broadcast(values.detach(), group=process_group, group_src=0)


@torch.no_grad()
def average_gradients(model: nn.Module, process_group: ProcessGroup | None = None) -> int:
    """Average the gradients of all tensorized weights over the processes, in one all-reduce.

    For models whose dense part is sharded by FSDP2, between ``backward()`` and ``optimizer.step()``; DDP does
    this by itself. All processes must have gradients for the same parameters, each of its parameter's shape::

        loss.backward()
        rankfold.distributed.average_gradients(model)
        optimizer.step()

    Returns:
        The number of bytes that were reduced.
    """
    gradients = [p.grad for p in _in_order(model) if p.grad is not None]
    if any(whole(gradient) is not gradient for gradient in gradients):
        raise RuntimeError(
            "FSDP2 has spread tensorized weights over the processes; keep them whole, with fully_shard(model, "
            "ignored_params=rankfold.distributed.tensorized_parameters(model))"
        )
    reduced = 0
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.flatten() for gradient in alike])
        dist.all_reduce(flat, group=process_group)
        flat.div_(dist.get_world_size(process_group))
        parts = flat.split([gradient.numel() for gradient in alike])
        torch._foreach_copy_(alike, [part.view_as(grad) for part, grad in zip(parts, alike, strict=True)])
        reduced += flat.nbytes
    return reduced


def _in_order(model: nn.Module) -> list[nn.Parameter]:
    chosen = tensorized_parameters(model)
    return [parameter for parameter in model.parameters() if parameter in chosen]


# Agreeing ---------------------------------------------------------------------------------------------


def agreed(
    dead: Mapping[str, Sequence[Tensor]],
    variances: Mapping[str, Tensor],
    device: torch.device,
    process_group: ProcessGroup | None = None,
) -> dict[str, list[Tensor]]:
    """The verdict of the first process on which ranks are dead, on all of them.

    Equal parameters give equal verdicts, but for the last bits on unlike hardware; shapes that differ
    between processes would break the next all-reduce, so none decides for itself. ``variances`` are λ of the same
    tensors: processes in which they differ train different models, and are refused.
    """
    verdicts = {name: [group.to(device) for group in groups] for name, groups in dead.items()}
    if not is_distributed(process_group) or not verdicts:
        return verdicts
    sizes = [len(group) for groups in verdicts.values() for group in groups]
    _check_equal(sizes, device, process_group)
    _check_alike(variances, device, process_group)
    flat = torch.cat([group for groups in verdicts.values() for group in groups]).to(torch.uint8)
    dist.broadcast(flat, group=process_group, group_src=0)
    parts = iter(flat.bool().split(sizes))
    return {name: [next(parts) for _ in groups] for name, groups in verdicts.items()}


def is_distributed(process_group: ProcessGroup | None = None) -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(process_group) > 1


def whole(value: Tensor) -> Tensor:
    """``value`` itself, or all of it where FSDP2 has spread it over the processes, which all must ask."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _check_equal(sizes: Iterable[int], device: torch.device, process_group: ProcessGroup | None) -> None:
    """Refuse processes whose ranks differ, before a collective of different sizes hangs."""
    # a polynomial of the sizes: one number that tells lists apart, whatever their length
    digest = 0
    for size in sizes:
        digest = (digest * 1_000_003 + size + 1) % 2**61
    extremes = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=process_group)
    if int(extremes[0]) != -int(extremes[1]):
        raise RuntimeError(
            "the processes hold models of different ranks, so they cannot prune together. Build and load the same "
            "model everywhere; for processes that train models of their own pass RankDetermination(process_group="
            "torch.distributed.new_subgroups(1)[0])"
        )


def _check_alike(variances: Mapping[str, Tensor], device: torch.device, process_group: ProcessGroup | None) -> None:
    """Refuse processes whose λ differ by more than rounding: nobody averages their gradients."""
    means = torch.stack([variance.mean().to(device) for variance in variances.values()])
    extremes = torch.cat([means, -means])
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=process_group)
    largest, smallest = extremes[: len(means)], -extremes[len(means) :]
    different = (largest - smallest > _ROUNDING * largest.abs()).tolist()
    if any(different):
        name = list(variances)[different.index(True)]
        raise RuntimeError(
            f"the processes train different models: λ of {name} is not the same in all of them. Call the wrapper that "
            f"DistributedDataParallel returns, not the model inside it; without DDP call rankfold.distributed."
            f"replicate_(model) before training and average_gradients(model) before every optimizer.step()"
        )
