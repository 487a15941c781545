"""The code of docs/reference/param-groups.md, around small models."""

from collections import OrderedDict

import torch
from torch import nn

import muster.torch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.my_stack = nn.Parameter(torch.randn(4, 8, 16))  # four matrices, (input, output)


model = nn.Sequential(OrderedDict(conv1=nn.Conv2d(3, 8, 3), block=Block(), proj=nn.Linear(16, 16)))

# [choose]
groups = muster.torch.param_groups(model, exclude="*conv1.*", include={"*.my_stack": {"output_dim": 1}})
optimizer = muster.torch.NorMuon(groups, lr=0.02)
# [/choose]
print([(group["name"], [name for name, _ in group["params"]]) for group in groups])

m = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
m[0].requires_grad_(False)
opt = muster.torch.NorMuon(muster.torch.param_groups(m, verbose=False), lr=0.02)
m(torch.randn(2, 8)).sum().backward()
opt.step()

# [unfreeze]
m[0].weight.requires_grad_(True)
opt.add_param_group({"params": [("0.weight", m[0].weight)]})
# [/unfreeze]
before = m[0].weight.detach().clone()
m(torch.randn(2, 8)).sum().backward()
opt.step()
print("0.weight trains:", not torch.equal(before, m[0].weight))
