"""DDP, for steps that begin in backward."""
# Without postponed annotations: DDP looks at those of the hook.

from typing import Any

import torch
import torch.distributed as dist


def ddp_hook(
    optimizer: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """DDP's average of a bucket, of which the optimizer hears: ``model.register_comm_hook(optimizer, ddp_hook)``."""
    group = optimizer.ranks.group
    averaged = bucket.buffer().div_(dist.get_world_size(group))
    work = dist.all_reduce(averaged, group=group, async_op=True)
    if optimizer._overlap is not None:
        optimizer._overlap.bucket(work, bucket.parameters(), bucket.gradients())
    first: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return first
