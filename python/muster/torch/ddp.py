"""A communication hook for DDP, for steps that begin during backward."""
# No `from __future__ import annotations`: DDP reads the hook's annotations.

from typing import Any

import torch
import torch.distributed as dist


def ddp_hook(
    optimizer: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket as DDP does, and tells the optimizer, so that steps with ``overlap=True`` begin during backward.

    Give it to DDP before the first backward: ``model.register_comm_hook(optimizer, muster.torch.ddp_hook)``. DDP calls
    it, on all ranks.

    Args:
        optimizer: a ``NorMuon`` or ``Muon`` over the same ranks as the DDP model.
        bucket: gradients, as DDP gives them.
    """
    group = optimizer.ranks.group
    averaged = bucket.buffer().div_(dist.get_world_size(group))
    work = dist.all_reduce(averaged, group=group, async_op=True)
    if optimizer._overlap is not None:
        optimizer._overlap.bucket(work, bucket.parameters(), bucket.gradients())
    first: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return first
