"""The lines of the README, around a model of one layer."""

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64, bias=False))
tokens = torch.arange(64)

# [five-lines]
import muster.torch

optimizer = muster.torch.NorMuon(muster.torch.param_groups(model), lr=0.02, weight_decay=0.01)
loss = nn.functional.cross_entropy(model(tokens), tokens)
loss.backward()
optimizer.step()
# [/five-lines]

print(f"loss {loss.item():.4f}, then {nn.functional.cross_entropy(model(tokens), tokens).item():.4f}")
