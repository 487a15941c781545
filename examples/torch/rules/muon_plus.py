"""Muon+: Muon whose orthogonalized update is then normalized by rows and columns."""

import torch
from newton_schulz import orthogonalize

import muster.torch


class MuonPlus(muster.torch.Rule):
    def update(self, u, state, group, step):
        o = orthogonalize(u)
        norm = o.norm(dim=(-2, -1), keepdim=True)
        o = o / (o.norm(dim=-1, keepdim=True) + group["eps"])  # rows
        o = o / (o.norm(dim=-2, keepdim=True) + group["eps"])  # columns
        return o * (norm / (o.norm(dim=(-2, -1), keepdim=True) + group["eps"]))


def make(model: torch.nn.Module) -> torch.optim.Optimizer:
    return muster.torch.MatrixOptimizer(muster.torch.param_groups(model), rule=MuonPlus(), lr=0.02)
