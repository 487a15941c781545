"""Trains a small GPT on the bytes of this repository's documentation.

    python train.py                                             # one process
    torchrun --nproc-per-node 4 train.py --parallel ddp
    torchrun --nproc-per-node 4 train.py --parallel fsdp
    torchrun --nproc-per-node 4 train.py --parallel fsdp-tp     # 2 x 2

Every rank reads its part of the same batch, so that all ways learn the same. Only `parallelize` knows which one it is:
the optimizer's two lines do not change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import muster.torch

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 96, 3, 6, 64, 32
HEAD = WIDTH // HEADS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        # Under tensor parallelism a rank has some of the heads.
        q, k, v = (f(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallelize(model: GPT, how: str) -> tuple[nn.Module, int, int]:
    """The model, spread over the ranks; which part of a batch this one reads, of how many."""
    if how == "none":
        return model, 0, 1
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if how == "ddp":
        return DistributedDataParallel(model), rank, ranks
    data, tensor = (ranks, 1) if how == "fsdp" else (ranks // 2, 2)
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    if tensor > 1:
        columns, rows = ColwiseParallel(), RowwiseParallel()
        split = {"q": columns, "k": columns, "v": columns, "o": rows, "up": columns, "down": rows}
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], split)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, mesh.get_local_rank("data"), data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=["none", "ddp", "fsdp", "fsdp-tp"], default="none")
    parser.add_argument("--optimizer", choices=["normuon", "muon", "adamw"], default="normuon")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--plan", action="store_true", help="print who orthogonalizes what")
    options = parser.parse_args()
    if options.parallel != "none":
        dist.init_process_group("gloo")

    docs = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in docs)), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model, part, parts = parallelize(GPT(), options.parallel)

    groups = muster.torch.param_groups(model, adamw_lr=2e-3)
    optimizer = muster.torch.NorMuon(groups, lr=options.lr, algorithm=options.optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.steps)
    first = options.parallel == "none" or dist.get_rank() == 0
    if options.plan and first:
        print(optimizer.plan())

    draw = torch.Generator().manual_seed(1)
    for step in range(options.steps):
        at = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw).chunk(parts)[part]
        batch = text[at[:, None] + torch.arange(CONTEXT + 1)]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        schedule.step()
        mean = loss.detach()
        if options.parallel != "none":
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        if first and (step + 1) % 20 == 0:
            print(f"step {step + 1:4d}  loss {mean.item():.4f}", flush=True)

    if options.parallel != "none":
        dist.barrier()  # a process that leaves earlier can make another abort
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
