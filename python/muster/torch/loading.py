"""What a state_dict changes: groups, and states by the names of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .communicator import gather, raise_first
from .groups import FIXED

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
    process_group: dist.ProcessGroup | None,
    state_dict: Mapping[str, Any],
) -> States:
    """Groups take over what may change from step to step. Raises what any rank found wrong, on all. All together."""
    states: States = {}
    spread: list[tuple[str, str]] = []
    error: str | None = None
    try:
        states = _by_name(names, state_dict)
        spread = _check(states)
        _take_over_groups(optimizer, state_dict)
    except ValueError as caught:
        error = str(caught)
    except (TypeError, KeyError, AttributeError) as caught:
        error = f"state_dict: {type(caught).__name__}: {caught}; was it made by an optimizer?"
    everybody = gather(process_group, (error, spread))
    raise_first([theirs for theirs, _ in everybody], error)
    for rank, (_, theirs) in enumerate(everybody):  # or else they would wait for each other to put them together
        if theirs != everybody[0][1]:
            raise ValueError(f"state_dict: ranks disagree: rank {rank} has other DTensors in it than rank 0")
    return states


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


def _check(states: States) -> list[tuple[str, str]]:
    """Which are DTensors, that all ranks put together."""
    spread = []
    for parameter, entries in states.items():
        for entry, value in entries.items():
            if not isinstance(value, (torch.Tensor, int, float)):
                raise ValueError(f"state_dict: '{parameter}': {entry} is a {type(value).__name__}, expected a tensor")
            if isinstance(value, DTensor):
                spread.append((parameter, entry))
    return spread


def _take_over_groups(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    before = [dict(group) for group in optimizer.param_groups]
    # Without the states, which torch would cast to the dtypes of their parameters.
    torch.optim.Optimizer.load_state_dict(optimizer, {"state": {}, "param_groups": state_dict["param_groups"]})
    for group, old in zip(optimizer.param_groups, before):
        for key, value in old.items():
            if key in FIXED or key not in group:  # or what another version, or another optimizer, does not know
                group[key] = value
