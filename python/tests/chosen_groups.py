"""What param_groups chose for each parameter, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import muster.torch
from muster.torch.groups import bare_name

ADAMW = "adamw"


def chosen(model: nn.Module, **arguments: Any) -> dict[str, Any]:
    """By name: "adamw", or the keys of a matrix group."""
    out = {}
    for group in muster.torch.param_groups(model, verbose=False, **arguments):
        keys = {key: group[key] for key in group if key not in ("params", "name")}
        for name, _ in group["params"]:
            out[bare_name(name)] = ADAMW if keys.get("algorithm") == "adamw" else keys
    return out


def matrices(model: nn.Module, **arguments: Any) -> dict[str, Any]:
    return {name: keys for name, keys in chosen(model, **arguments).items() if keys != ADAMW}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.score = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.score(self.down(self.up(self.words(tokens)).relu()))


# Classes of torch.


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(4, 16, 8))


class Moe(nn.Module):
    def __init__(self, router: nn.Module, experts: nn.Module) -> None:
        super().__init__()
        self.choose, self.experts = router, experts
