"""Plan options of modded-nanogpt #132, and a side of NorMuon per block as in #168, from PyTorch."""

from pathlib import Path

import torch
from torch import nn

import muster.torch

table = Path(__file__).with_name("reference_cost_table.json")  # as `muster tune -o` writes it
# [plans]
blocks = [nn.Linear(64, width, bias=False) for width in (64, 128, 256)]
groups = [{"params": [(f"block{i}", block.weight)]} for i, block in enumerate(blocks)]
for options in (
    {"strategy": "grouped", "groups": [1, 2], "mixed_groups": True, "in_flight": "all"},
    {"waves": 3, "wave_order": "small_last", "elementwise": "last", "in_flight": 2, "cost": table},
):
    optimizer = muster.torch.NorMuon(groups, lr=0.02, plan=muster.torch.PlanOptions(**options))
    plan = optimizer.plan(verbose=False)
    print({key: plan[key] for key in ("strategy", "waves", "in_flight", "cost")})
# [/plans]
# [blocks]
qkvo = nn.Parameter(torch.randn(256, 64))
sides = ["rows", "rows", "rows", "columns"]  # the output heads along the other side
optimizer = muster.torch.NorMuon([{"params": [("qkvo", qkvo)], "split_rows": [64] * 4, "normalize": sides}], lr=0.02)
qkvo.grad = torch.randn(256, 64)
optimizer.step()
print(optimizer.plan(verbose=False)["matrices"], "matrices,", [key for key in optimizer.state[qkvo]])
# [/blocks]
