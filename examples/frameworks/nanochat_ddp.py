"""A training loop in the manner of nanochat, under DDP: a learning rate per kind of parameter, momentum warm-up, and a
learning rate that falls to zero over the last part of training.

    torchrun --nproc-per-node 2 nanochat_ddp.py /tmp/out
    torchrun --nproc-per-node 2 nanochat_ddp.py /tmp/out --resume
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import WIDTH, Text, TinyGPT, parse
from torch.nn.parallel import DistributedDataParallel

import muster.torch

BATCH, WARM_UP, WARM_DOWN = 8, 300, 0.4  # rows per rank; steps of momentum; part of training


def make_optimizer(model: TinyGPT) -> muster.torch.NorMuon:
    """Rates of AdamW are for a width of 768, and fall with the root of the width."""
    scale = (WIDTH / 768) ** -0.5
    adamw = {"algorithm": "adamw", "betas": (0.8, 0.95), "eps": 1e-10}
    embeddings = [("tokens.weight", model.tokens.weight), ("places.weight", model.places.weight)]
    gains = [(name, p) for name, p in model.named_parameters() if p.ndim < 2]
    groups = [
        {"params": [(n, p) for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2]},
        {"params": [("lm_head.weight", model.lm_head.weight)], "lr": 0.004 * scale, **adamw},
        {"params": embeddings, "lr": 0.2 * scale, **adamw},
        {"params": gains, "lr": 0.005 * scale, **adamw},
    ]
    return muster.torch.NorMuon(groups, lr=0.02, weight_decay=0.01, decay="cautious")


# [schedule]
def set_hyperparameters(optimizer: muster.torch.NorMuon, step: int, steps: int) -> None:
    """For the step that comes next, counted from 0."""
    left = min(1.0, (steps - step) / (WARM_DOWN * steps))
    warm = min(1.0, step / WARM_UP)
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * left
        if group["algorithm"] != "adamw":
            group["momentum"] = 0.85 + warm * (0.95 - 0.85)


# [/schedule]


def main() -> None:
    options = parse(__doc__)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # started without torchrun
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", **({} if "RANK" in os.environ else alone))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = TinyGPT().to(device)
    parallel, optimizer, first = DistributedDataParallel(model), make_optimizer(model), 0
    path = Path(options.folder) / "last.pt"
    if options.resume:
        saved = torch.load(path, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    text = Text()
    for step in range(first, options.steps):
        rows = range((step * ranks + rank) * BATCH, (step * ranks + rank + 1) * BATCH)
        set_hyperparameters(optimizer, step, options.steps)
        loss = parallel(torch.stack([text[row % len(text)] for row in rows]).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1} loss {mean.item()!r}", flush=True)
        if rank == 0 and (step + 1) % options.save_every == 0 and step + 1 < options.steps:
            path.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
