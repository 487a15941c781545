"""Experts that each expert-parallel rank has alone, in different numbers (docs/howto/expert-parallel.md).

torchrun --standalone --nproc-per-node 4 expert_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import muster.torch


class Experts(nn.Module):
    """Some experts of a layer, as one stack of (output, input) matrices."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, 64, 32) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ecw,ehw->ech", x, self.up).square()


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

# [mesh]
mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("ep", "fsdp"))
mine = 3 if mesh["ep"].get_local_rank() == 0 else 2
model = nn.ModuleDict({"router": nn.Linear(32, 5, bias=False), "experts": Experts(mine)})
fully_shard(model["experts"], mesh=mesh["fsdp"])  # each half of the ranks shards its own experts
# [/mesh]

# [optimizer]
groups = muster.torch.param_groups(model, include={"experts.*": {"rank_local": mesh["ep"]}})
optimizer = muster.torch.NorMuon(groups, lr=0.02)
optimizer.plan()
# [/optimizer]

before = model["experts"].up.full_tensor().detach().clone()
tokens = torch.eye(32).expand(len(before), 32, 32)
(model["experts"](tokens).mean() + model["router"](torch.eye(32)).square().mean()).backward()
optimizer.step()
change = (model["experts"].up.full_tensor().detach() - before).flatten(1).norm(dim=1)
if mesh["fsdp"].get_local_rank() == 0:
    print(f"rank {rank}: {len(change)} experts, each changed by {change.min():.3f} to {change.max():.3f}", flush=True)
dist.barrier()
dist.destroy_process_group()
