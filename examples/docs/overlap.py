"""Steps that start during backward (docs/howto/overlap.md).

torchrun --standalone --nproc-per-node 2 overlap.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import muster.torch


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))


def train(model: nn.Module, optimizer: muster.torch.NorMuon) -> list[torch.Tensor]:
    """Returns the whole weights."""
    for _ in range(5):
        model(torch.eye(64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("early waves of the last step:", optimizer.stats()["early_waves"], flush=True)
    return [w.full_tensor() if isinstance(w, DTensor) else w for w in (p.detach() for p in model.parameters())]


dist.init_process_group("gloo")

model = layers()
for layer in model:
    fully_shard(layer)
fully_shard(model)
# [fsdp]
groups = muster.torch.param_groups(model)
optimizer = muster.torch.NorMuon(groups, lr=0.02, overlap=True)
# [/fsdp]
trained = {"FSDP2": train(model, optimizer)}

model = DistributedDataParallel(layers(), bucket_cap_mb=0.01)
# [ddp]
groups = muster.torch.param_groups(model)
optimizer = muster.torch.NorMuon(groups, lr=0.02, overlap=True)
model.register_comm_hook(optimizer, muster.torch.ddp_hook)
# [/ddp]
trained["DDP"] = train(model, optimizer)

model = layers()
optimizer = muster.torch.NorMuon(muster.torch.param_groups(model), lr=0.02)
expected = train(model, optimizer)
for name, weights in trained.items():
    same = all(torch.equal(ours, theirs) for ours, theirs in zip(weights, expected))
    if dist.get_rank() == 0:
        print(f"{name}: {'the same' if same else 'other'} bits as without overlap", flush=True)
dist.barrier()
dist.destroy_process_group()
