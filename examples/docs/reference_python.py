"""The code of docs/reference/python.md, around a small model: python3 reference_python.py FOLDER"""

import os
import sys

import torch
from torch import nn

import muster.torch

os.chdir(sys.argv[1])
model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32, bias=False))
batches = [torch.arange(32)] * 4
written: dict[int, dict[str, float]] = {}


def backward(tokens: torch.Tensor) -> None:
    model.zero_grad()
    nn.functional.cross_entropy(model(tokens), tokens).backward()


# [use]
optimizer = muster.torch.NorMuon(muster.torch.param_groups(model), lr=0.02, weight_decay=0.01)
optimizer.plan()  # prints which rank orthogonalizes what, and what moves
# [/use]


def writer(values: dict[str, float], step: int) -> None:
    written[step] = values


# [monitor]
optimizer.monitor_every = 2  # or an argument of the constructor
for step, tokens in enumerate(batches, 1):
    backward(tokens)
    optimizer.step()
    optimizer.log_stats(writer, step)  # a SummaryWriter, a W&B run, or a function of (values, step)
# [/monitor]

# [groups]
by_hand = muster.torch.Muon(
    [
        {"params": [("fused", model[1].weight)], "split_rows": [16, 16, 16], "scale": "rms"},
        {"params": [("embedding", model[0].weight)], "algorithm": "adamw", "lr": 3e-4},
    ],
    lr=0.02,
)
# [/groups]
backward(batches[0])
by_hand.step()

# [plan]
plan = muster.torch.PlanOptions(strategy="grouped", groups=[1, 1], in_flight="all", cost="h200")
optimizer_of_groups = muster.torch.NorMuon(muster.torch.param_groups(model), lr=0.02, plan=plan)
# [/plan]
optimizer_of_groups.plan(verbose=False)

# [timeline]
with torch.profiler.profile() as theirs, muster.torch.profile("muster.json") as timeline:
    backward(batches[0])
    optimizer.step()
theirs.export_chrome_trace("torch.json")
timeline.add_to("torch.json")  # one file with both
# [/timeline]

weights = [model[1].weight, model[3].weight]
momenta = [torch.zeros_like(weight) for weight in weights]


# [orthogonalize]
@torch.no_grad()
def my_step(weights: list[nn.Parameter], momenta: list[torch.Tensor], lr: float = 0.02) -> None:
    for weight, momentum in zip(weights, momenta):
        momentum.lerp_(weight.grad, 0.05)
        update = muster.torch.orthogonalize(weight.grad.lerp(momentum, 0.95), "capped3")
        weight.add_(update, alpha=-lr)


# [/orthogonalize]
losses = []
for tokens in batches:
    backward(tokens)
    my_step(weights, momenta)
    losses.append(nn.functional.cross_entropy(model(tokens), tokens).item())
print(f"orthogonalize: {losses == sorted(losses, reverse=True)}")

print(sorted(written), len(written[2]))
