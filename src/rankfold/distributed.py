"""Helpers for training in several processes."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


def rewrap(ddp: DistributedDataParallel) -> DistributedDataParallel:
    """Wrap the module of ``ddp`` again, after pruning has changed its shapes.

    DDP lays out its communication buckets once, for the shapes it sees when it is made. All processes
    prune at the same step, so all of them call this at the same step::

        if ranks.step():
            ddp = rankfold.rewrap(ddp)
    """
    # newer releases of torch deprecate naming the default
    buffers: dict[str, Any] = {} if ddp.broadcast_buffers else {"broadcast_buffers": False}
    return DistributedDataParallel(
        ddp.module,
        device_ids=ddp.device_ids,
        output_device=ddp.output_device,
        dim=ddp.dim,
        find_unused_parameters=ddp.find_unused_parameters,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        static_graph=ddp.static_graph,
        **buffers,
    )
