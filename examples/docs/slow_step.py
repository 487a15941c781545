"""Measures steps and their memory (docs/howto/why-is-my-step-slow.md).

python slow_step.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn

import muster.torch

folder = Path(sys.argv[1])
model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4))).to(torch.bfloat16)


def train_some_steps(optimizer: muster.torch.NorMuon) -> None:
    for _ in range(3):
        model(torch.eye(128, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


groups = muster.torch.param_groups(model, verbose=False)
optimizer = muster.torch.NorMuon(groups, lr=0.02)
# [timeline]
with muster.torch.profile(folder / "muster.json"):
    train_some_steps(optimizer)
# [/timeline]
# [stats]
stats = optimizer.stats()  # of the last step, on this rank
milliseconds = {stage: ns / 1e6 for stage, ns in stats["stage_ns"].items()}
print(stats["total_ns"] / 1e6, milliseconds, stats["bytes_sent"], stats["early_waves"])
# [/stats]
groups = muster.torch.param_groups(model, verbose=False)
# [memory]
optimizer = muster.torch.NorMuon(
    groups,
    lr=0.02,
    momentum_dtype="bf16",  # 2 bytes per element of a matrix instead of 4
    bf16_weights="stochastic",  # no copy; "master" has 4 more bytes per element, "mantissa" 2
    replicate_state=False,  # DDP, HSDP: each element's state on one replica only
    scratch_mib=256,
)
# [/memory]
train_some_steps(optimizer)
print(f"scratch: {optimizer.plan(verbose=False)['scratch_bytes_max'] / 2**20:.1f} MiB")
