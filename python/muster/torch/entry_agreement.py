"""Compares the entries of a checkpoint between ranks before they gather its DTensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .ranks import Ranks


def agree_on_entries(ranks: Ranks, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError on all ranks if an entry is no tensor, or if DTensors cannot be gathered."""
    spread: list[_Spread] = []
    with ranks.together("entries of a state_dict"):
        spread = _check(states)
    everybody = ranks.gather("DTensors of a state_dict", spread)
    for views in zip_longest(*everybody):
        first = views[0]
        for rank, view in enumerate(views):
            if first is None or view is None or replace(view, mesh=first.mesh) != first:
                of = (first or view).of
                raise ValueError(f"state_dict: '{of}': rank {rank} has other DTensors in it than rank 0")
        meshes = {view.mesh for view in views}  # the same mesh, or the slices of one that the ranks are on
        if sum(len(mesh) for mesh in meshes) != len(set().union(*meshes)):
            raise ValueError(f"state_dict: '{first.of}': ranks have its {first.entry} on meshes that overlap: {meshes}")


@dataclass(frozen=True)
class _Spread:
    """A DTensor, which the ranks of its mesh gather together."""

    of: str
    entry: str
    like: tuple[Any, ...]
    mesh: tuple[int, ...]  # ranks


def _check(states: Mapping[str, Mapping[str, Any]]) -> list[_Spread]:
    """Checks that entries are dense tensors or numbers, and describes those that are DTensors."""
    spread: list[_Spread] = []
    for parameter, entries in states.items():
        for entry, value in entries.items():
            if not isinstance(value, (torch.Tensor, int, float)):
                raise ValueError(f"state_dict: '{parameter}': {entry} is a {type(value).__name__}, expected a tensor")
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise ValueError(f"state_dict: '{parameter}': {entry} is {value.layout}, expected a dense tensor")
            if isinstance(value, DTensor):
                mesh = value.device_mesh.mesh
                like = (tuple(value.shape), str(value.dtype), str(value.placements), tuple(mesh.shape))
                spread.append(_Spread(parameter, entry, like, tuple(mesh.flatten().tolist())))
    return spread
