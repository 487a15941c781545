"""What a state_dict changes: groups, and states by the names of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .groups import FIXED
from .ranks import Ranks

States = dict[str, Mapping[str, Any]]


@contextmanager
def unless_it_fails(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Param groups, which torch makes anew, are as they were if anything raises."""
    groups, state = optimizer.param_groups, optimizer.state
    try:
        yield
    except BaseException:
        optimizer.param_groups, optimizer.state = groups, state
        raise


def take_over(
    optimizer: torch.optim.Optimizer,
    names: Sequence[str],
    ranks: Ranks,
    state_dict: Mapping[str, Any],
) -> States:
    """Groups take over what may change from step to step. Raises what any rank found wrong, on all. All together."""
    states: States = {}
    with ranks.together("load_state_dict"):
        states = _by_name(names, state_dict)
        _take_over_groups(optimizer, state_dict)
    agree_on_entries(ranks, states)
    return states


def agree_on_entries(ranks: Ranks, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises on all ranks what one has that is no tensor, or DTensors that they could not put together."""
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
        meshes = {view.mesh for view in views}  # one, or slices of one that each rank sees its own of
        if sum(len(mesh) for mesh in meshes) != len(set().union(*meshes)):
            raise ValueError(f"state_dict: '{first.of}': ranks have its {first.entry} on meshes that overlap: {meshes}")


@dataclass(frozen=True)
class _Spread:
    """A DTensor, which the ranks of its mesh put together."""

    of: str
    entry: str
    like: tuple[Any, ...]
    mesh: tuple[int, ...]  # ranks


def _by_name(names: Sequence[str], state_dict: Mapping[str, Any]) -> States:
    """As torch does it, by place in the groups: keys are numbers, or names in torch.distributed.checkpoint."""
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"state_dict: no {key!r}; was it made by an optimizer?")
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    known = dict(zip(keys, names))
    for key in state_dict["state"]:
        if key not in known:
            raise ValueError(f"state_dict: it has state of {key!r}, which is in none of its param_groups")
    return {known[key]: entries for key, entries in state_dict["state"].items()}


def _check(states: Mapping[str, Mapping[str, Any]]) -> list[_Spread]:
    """Which are DTensors, that all ranks put together, and what they are like."""
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


def _take_over_groups(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    before = [dict(group) for group in optimizer.param_groups]
    # Without the states, which torch would cast to the dtypes of their parameters.
    torch.optim.Optimizer.load_state_dict(optimizer, {"state": {}, "param_groups": state_dict["param_groups"]})
    for group, old in zip(optimizer.param_groups, before):
        for key in FIXED:
            group.pop(key, None)
        for key, value in old.items():
            if key in FIXED or key not in group:  # or what another version, or another optimizer, does not know
                group[key] = value
