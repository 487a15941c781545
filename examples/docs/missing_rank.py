"""What a rank sees if another one makes fewer steps (docs/howto/debug-a-hang.md).

torchrun --standalone --nproc-per-node 2 missing_rank.py SECONDS
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import muster
import muster.torch

seconds = float(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(8, 8, bias=False)
groups = muster.torch.param_groups(model, verbose=False)
# [timeout]
optimizer = muster.torch.NorMuon(groups, lr=0.02, timeout=timedelta(seconds=seconds))  # default: 10 minutes
# [/timeout]


def train() -> None:
    for _ in range(2 if rank == 1 else 4):  # rank 1 runs out of batches
        model(torch.eye(8)).square().mean().backward()
        optimizer.step()


# [catch]
try:
    train()
except muster.CommError as error:
    print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    if error.code == muster.ErrorCode.rank_missing:
        print(f"rank {rank}: another rank is late or gone, and this one is well", file=sys.stderr, flush=True)
    os._exit(1)  # the process group is unusable now: start all ranks again, from a checkpoint
# [/catch]
dist.barrier()  # where rank 1 waits meanwhile
