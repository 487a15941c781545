"""Checks a state_dict and finds what it changes: param groups, and the state of parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .group_keys import FIXED
from .groups import bare_name
from .layout import local
from .parameter_states import SHARED
from .state_tensors import State, check_fits

Entries = Mapping[str, Any]


@contextmanager
def unless_it_fails(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restores the param groups if anything raises."""
    groups = optimizer.param_groups
    try:
        yield
    except BaseException:
        optimizer.param_groups = groups
        raise


def check_form(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Raises ValueError if it is not the state_dict of an optimizer with groups of these sizes."""
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"state_dict: no {key!r}; was it made by an optimizer?")
    ours, theirs = optimizer.param_groups, state_dict["param_groups"]
    if len(ours) != len(theirs):
        raise ValueError(
            f"state_dict: a different number of parameter groups: {len(theirs)}, expected {len(ours)};"
            " muster.torch.import_torch and import_dion translate those of other optimizers"
        )
    for number, (group, saved) in enumerate(zip(ours, theirs)):
        if "params" not in saved:
            raise ValueError(f"state_dict: param group {number} has no 'params'")
        if len(group["params"]) != len(saved["params"]):
            raise ValueError(
                f"state_dict: param group {number} doesn't match the size of the optimizer's group:"
                f" {len(saved['params'])} parameters, expected {len(group['params'])}"
            )


def take_over_groups(optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]]) -> None:
    """Groups take over the values that may change from step to step, and keys that this package does not read."""
    groups = []
    for group, theirs in zip(optimizer.param_groups, saved):
        given = copy.deepcopy({key: value for key, value in theirs.items() if key != "params" and key not in FIXED})
        kept = {key: value for key, value in group.items() if key not in given or key == "param_names"}
        groups.append({**given, **kept})
    optimizer.param_groups = groups


@dataclass
class Given:
    """The state in a state_dict: entries by place of the parameter in the groups, and entries of no parameter."""

    entries: dict[int, Entries] = field(default_factory=dict)
    others: dict[Any, Any] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not any(self.entries.values())


def match(groups: Sequence[Mapping[str, Any]], state_dict: Mapping[str, Any]) -> Given:
    """Matches parameters by name if both sides have names and some are equal, else by place, as torch does."""
    saved = state_dict["param_groups"]
    keys = [key for group in saved for key in group["params"]]
    places = list(range(len(keys)))
    ours, theirs = _names(groups), _names(saved)
    if ours is not None and theirs is not None and set(ours) & set(theirs):
        by_name = {name: place for place, name in enumerate(ours)}
        places = [by_name.get(name, -1) for name in theirs]
    known = dict(zip(keys, places))
    out = Given()
    for key, entries in state_dict["state"].items():
        if key in known and isinstance(entries, Mapping):
            if known[key] >= 0:
                out.entries[known[key]] = entries
        elif key in known or isinstance(entries, Mapping):
            raise ValueError(f"state_dict: it has state of {key!r}, which is in none of its param_groups")
        else:
            out.others[key] = entries
    return out


def _names(groups: Sequence[Mapping[str, Any]]) -> list[str] | None:
    names: list[str] = []
    for group in groups:
        given = group.get("param_names")
        if given is None or len(given) != len(group["params"]):
            return None
        names += map(bare_name, given)
    return names


@dataclass
class Changes:
    """What loading is going to do; all of it was checked."""

    copies: list[tuple[Any, torch.Tensor]] = field(default_factory=list)
    restarts: list[tuple[torch.Tensor, str]] = field(default_factory=list)  # parameters, entries
    counts: dict[str, int] = field(default_factory=dict)  # steps and seed
    of_engine: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name of the parameter


def check_entries(
    given: Given,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    owned: Mapping[torch.Tensor, State],
    of_engine: Mapping[str, State],
    warn: bool,
) -> Changes:
    """Compares the given entries with those of the optimizer. Raises ValueError that names parameter and entry.

    ``owned`` are the tensors to copy into. ``of_engine`` has tensors like those that only the engine keeps.
    """
    out, missing, ignored, fitting = Changes(), [], [], 0
    memory = {_storage(mine) for entries in owned.values() for mine in entries.values()}
    for place, (name, tensor) in enumerate(zip(names, tensors)):
        entries, own, its = given.entries.get(place, {}), owned[tensor], of_engine.get(name, {})
        if its and entries and not its.keys() & entries.keys():
            raise ValueError(
                f"state_dict: it has no {', '.join(its)} of '{name}': flatten_optimizer_state_dict loads only entries"
                " of opt.state, which has none that only the engine keeps; load a nested state_dict, or give"
                " replicate_state=True"
            )
        ignored += [f"{name}: {entry}" for entry in entries if entry not in own and entry not in its]
        for entry, into in {**own, **its}.items():
            value = entries.get(entry)
            if value is None:
                if entry not in ("master", "mantissa", *SHARED):  # these complete the weights and stay as they are
                    if tensor.requires_grad and into.numel():
                        missing.append(f"{name}: {entry}")
                    if entry in own:
                        out.restarts.append((tensor, entry))
                continue
            check_fits(name, entry, value, into)
            if entry in SHARED:
                if out.counts.setdefault(entry, int(value)) != int(value):
                    raise ValueError(f"state_dict: {entry} is {out.counts[entry]} and, of '{name}', {int(value)}")
                continue
            fitting += 1
            if entry in its:
                out.of_engine.setdefault(name, {})[entry] = value
            elif value is not into:
                aliased = isinstance(value, torch.Tensor) and _storage(value) in memory
                out.copies.append((value.clone() if aliased else value, into))
    if not given.empty and not fitting:
        raise ValueError(
            f"state_dict: none of its entries is of this optimizer: {', '.join(ignored[:4])}"
            f"{', ...' if len(ignored) > 4 else ''}; muster.torch.import_torch and import_dion translate others"
        )
    if warn and not given.empty:
        _warn(missing, ignored)
    return out


def _storage(tensor: torch.Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


def _warn(missing: list[str], ignored: list[str]) -> None:
    parts = []
    if missing:
        parts.append(f"these entries are missing and start from zero: {', '.join(missing)}")
    if ignored:
        parts.append(f"these entries have no counterpart and are ignored: {', '.join(ignored)}")
    if parts:
        warnings.warn(f"muster: load_state_dict: {'; '.join(parts)}", stacklevel=7)
