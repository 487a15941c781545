"""What the examples share: a small GPT, the text it reads (Shakespeare, in data/), and a training loop."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import muster.torch

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 96, 3, 6, 64, 32
HEAD = WIDTH // HEADS


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, mlp: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.mlp = mlp()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        # Under tensor parallelism a rank has some of the heads.
        q, k, v = (f(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """(batch, time) bytes to (batch, time, 256) logits."""

    def __init__(self, mlp: Callable[[], nn.Module] = Mlp, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(mlp) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text() -> Tensor:
    """Bytes, as int64."""
    text = (Path(__file__).parents[2] / "data" / "shakespeare.txt").read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class Batches:
    """(batch, time + 1) bytes, the same for the same seed; a rank that is to have a part of them has its rows."""

    def __init__(self, text: Tensor, seed: int = 1, part: int = 0, parts: int = 1, batch: int = BATCH) -> None:
        self.text, self.part, self.parts, self.batch = text, part, parts, batch
        self.draw = torch.Generator().manual_seed(seed)

    def next(self) -> Tensor:
        at = torch.randint(len(self.text) - CONTEXT - 1, (self.batch,), generator=self.draw).chunk(self.parts)[
            self.part
        ]
        return self.text[at[:, None] + torch.arange(CONTEXT + 1)]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def parse(description: str | None, **choices: list[str]) -> argparse.Namespace:
    """The options all examples have, and more with choices, the first of which is the default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    parser.add_argument("--optimizer", choices=["normuon", "muon", "adamw"], default="normuon")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS", help="print the loss")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--plan", action="store_true", help="print who orthogonalizes what")
    return parser.parse_args()


def start(device: str) -> None:
    """Joins the other processes, where torchrun has started some."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")


def stop() -> None:
    """Ends a process that has joined others.

    Here and now: Gloo's threads outlive destroy_process_group where a mesh has their group, and one that drops a tensor
    while Python ends aborts the process (pytorch #190489).
    """
    if dist.is_initialized():
        dist.barrier()  # a process that leaves earlier can make another abort
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)


def train(model: nn.Module, options: argparse.Namespace, part: int, parts: int) -> None:
    """Trains on this rank's part of every batch, and prints the mean loss of all."""
    # [optimizer]
    groups = muster.torch.param_groups(model, adamw_lr=2e-3)
    optimizer = muster.torch.NorMuon(groups, lr=options.lr, algorithm=options.optimizer)
    # [/optimizer]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.steps)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if options.plan and first:
        optimizer.plan()
    batches = Batches(read_text(), part=part, parts=parts)
    for step in range(1, options.steps + 1):
        loss = loss_of(model, batches.next().to(options.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        schedule.step()
        mean = loss.detach()
        if dist.is_initialized():
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        if first and step % options.print_every == 0:
            print(f"step {step:4d}  loss {mean.item():.4f}", flush=True)
