"""Learns to predict the next byte of a text from the 16 before it, under FSDP2 (docs/tutorial/pytorch.md).

torchrun --standalone --nproc-per-node 2 fsdp2.py TEXT             # trains, and saves after step 20
torchrun --standalone --nproc-per-node 1 fsdp2.py TEXT --resume    # continues from step 21, on another number of ranks
"""

import argparse
import os
import sys
from pathlib import Path

# [imports]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import muster.torch

# [/imports]

parser = argparse.ArgumentParser()
parser.add_argument("text")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--checkpoint", default="checkpoint")
options = parser.parse_args()


# [model]
class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class NextByte(nn.Module):
    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width // 16)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, bytes16: torch.Tensor) -> torch.Tensor:
        x = self.embed(bytes16).flatten(1)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


# [/model]

# [shard]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same weights on all ranks
model = NextByte()
mesh = init_device_mesh("cpu", (ranks,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
# [/shard]

# [optimizer]
groups = muster.torch.param_groups(model, adamw_lr=2e-3)
optimizer = muster.torch.NorMuon(groups, lr=0.02)
# [/optimizer]

# [resume]
first = 1
if options.resume:
    optimizer.load(options.checkpoint)
    first += int(optimizer.state[model.lm_head.weight]["steps"])
# [/resume]

# [train]
text = torch.frombuffer(bytearray(Path(options.text).read_bytes()), dtype=torch.uint8).long()
parts = max(2, ranks)  # of a batch; two on one rank too, so that one rank adds what two ranks add
for step in range(first, options.steps + 1):
    draw = torch.Generator().manual_seed(step)  # all ranks draw the same batch, and each takes its parts
    at = torch.randint(len(text) - 17, (256,), generator=draw).chunk(parts)
    mean = torch.zeros(())
    for part in range(rank, parts, ranks):
        rows = text[at[part][:, None] + torch.arange(17)]
        loss = nn.functional.cross_entropy(model(rows[:, :16]), rows[:, 16]) * ranks / parts
        loss.backward()  # FSDP2 averages over ranks
        mean += loss.detach() / ranks
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"step {step:2}  loss {mean.item()!r}", flush=True)
    if step == 20:
        optimizer.save(options.checkpoint)  # all ranks together
# [/train]

# [end]
dist.barrier()
sys.stdout.flush()
os._exit(0)  # Gloo's threads can abort a process that ends Python right after collectives (pytorch #190489)
# [/end]
