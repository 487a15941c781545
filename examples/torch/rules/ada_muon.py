"""AdaMuon: the sign of the momentum is orthogonalized, and its elements are scaled by their mean squares over time."""

import torch
from newton_schulz import orthogonalize

import muster.torch


# [rule]
class AdaMuon(muster.torch.Rule):
    state = {"square": ("rows", "columns")}

    def update(self, u, state, group, step):
        beta2 = group["betas"][1]
        o = orthogonalize(u.sign())
        state["square"].lerp_(o.square(), 1 - beta2)
        o = o / ((state["square"] / (1 - beta2**step)).sqrt() + group["eps"])
        size = (o.size(-2) * o.size(-1)) ** 0.5
        return o * (0.2 * size / (o.norm(dim=(-2, -1), keepdim=True) + group["eps"]))  # an RMS of 0.2, as AdamW's
# [/rule]


def make(model: torch.nn.Module) -> torch.optim.Optimizer:
    # [use]
    groups = muster.torch.param_groups(model)
    optimizer = muster.torch.MatrixOptimizer(groups, rule=AdaMuon(), lr=0.02, scale="none")
    # [/use]
    return optimizer
