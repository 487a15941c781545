"""The tensors of ``opt.state``, kept through new plans and through changes by users.

Tensors in ``opt.state`` are memory that the engine computes on. If a user puts another tensor there, its values are
copied into that memory. If a user removes one, it starts from zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from .. import _muster
from .layout import local
from .state_tensors import State, check_fits, fill, is_same_memory

#: Entries of the optimizer as a whole: one tensor for all parameters.
SHARED = ("steps", "seed")


class ParameterStates:
    """Owns the tensors of ``opt.state``."""

    def __init__(self, seed: int) -> None:
        self._first_seed = seed
        self.counts = torch.tensor([0, seed], dtype=torch.int64)  # steps done, seed
        self._shared: State = {"steps": self.counts[0], "seed": self.counts[1]}
        self.owned: dict[torch.Tensor, State] = {}
        self.names: dict[torch.Tensor, str] = {}
        self._containers: list[Any] = []  # the values of opt.state; the next list has those of parameters
        self._ours: list[Any] = []
        self._tensors: list[torch.Tensor] = []

    # Plans.

    def carry_over(
        self,
        state: MutableMapping[torch.Tensor, Any],
        names: dict[torch.Tensor, str],
        exported: dict[str, State],
        make: Callable[[int, torch.Tensor], State],
    ) -> dict[torch.Tensor, dict[str, Any]]:
        """Makes entries for the parameters of ``names``, with the values of their previous entries.

        State follows its parameter by identity, else by name. ``exported`` is state that the previous engine kept, by
        earlier name. ``make`` makes entries of zero, by number and parameter. Returns the values without an entry,
        which the engine keeps. Raises ValueError that names a parameter, with nothing changed.
        """
        before = self._before(state, names, exported)
        owned: dict[torch.Tensor, State] = {}
        rest: dict[torch.Tensor, dict[str, Any]] = {}
        copies: list[tuple[Any, torch.Tensor]] = []
        for number, (parameter, name) in enumerate(names.items()):
            given, entries = before.get(parameter, {}), make(number, parameter)
            for entry, fresh in entries.items():
                value = given.get(entry)
                if value is None:
                    continue
                mine = self.owned.get(parameter, {}).get(entry)
                if mine is not None and value is mine and entry != "updates" and is_same_memory(mine, fresh):
                    entries[entry] = mine
                else:
                    check_fits(name, entry, value, fresh)
                    copies.append((value, fresh))
            owned[parameter] = {**entries, **self._shared}
            rest[parameter] = {k: v for k, v in given.items() if k not in owned[parameter]}
        shared = {entry: self._given(before.values(), entry) for entry in SHARED}
        for value, fresh in copies:
            fill(value, fresh)
        for entry, value in shared.items():
            self._set_shared(entry, value)
        self.owned, self.names = owned, names
        self.put(state)
        return rest

    def _before(
        self, state: MutableMapping[torch.Tensor, Any], names: dict[torch.Tensor, str], exported: dict[str, State]
    ) -> dict[torch.Tensor, dict[str, Any]]:
        """Previous entries by parameter; those of a replaced tensor go to the one that has its name now."""
        gone = {name: tensor for tensor, name in self.names.items() if tensor not in names}
        out: dict[torch.Tensor, dict[str, Any]] = {}
        for parameter, name in names.items():
            old = parameter
            if parameter not in self.names and parameter not in state and name in gone:
                old = gone[name]
            entries = state.get(old)
            if entries is not None and not isinstance(entries, dict):
                raise ValueError(f"state of '{name}' is a {type(entries).__name__}, expected a dict of tensors")
            was_there = entries is not None or old not in self.owned
            found = {**(entries or {}), **(exported.get(self.names.get(old, name), {}) if was_there else {})}
            if old is not parameter and old.shape != parameter.shape:
                warnings.warn(
                    f"muster: '{name}' was replaced by a tensor of shape {tuple(parameter.shape)}, it had"
                    f" {tuple(old.shape)}: its state starts from zero",
                    stacklevel=2,
                )
                found = {entry: value for entry, value in found.items() if entry in SHARED}
            out[parameter] = found
        return out

    def _given(self, states: Any, entry: str) -> Any:
        """A shared value: the owned one, unless a user put another into any entry. None: no entry has it."""
        values = [entries[entry] for entries in states if entry in entries]
        others = [value for value in values if value is not self._shared[entry]]
        return others[0] if others else self._shared[entry] if values else None

    def _set_shared(self, entry: str, value: Any) -> None:
        if value is None:
            value = 0 if entry == "steps" else self._first_seed
        if value is not self._shared[entry]:
            fill(value, self._shared[entry])

    def restore(self, state: MutableMapping[torch.Tensor, Any], counts: dict[str, int]) -> None:
        """Called when all entries were written in place; ``counts`` has steps and seed."""
        for entry in SHARED:
            self._set_shared(entry, counts.get(entry))
        self.put(state)

    def put(self, state: MutableMapping[torch.Tensor, Any]) -> None:
        """Makes ``opt.state`` hold the owned tensors, in the order of the parameters. Keeps what users added."""
        others = {k: v for k, v in state.items() if not isinstance(k, torch.Tensor)}
        ours = {parameter: state.get(parameter) or {} for parameter in self.owned}
        state.clear()
        for parameter, entries in ours.items():
            entries.update(self.owned[parameter])
            state[parameter] = entries
        state.update(others)
        self._containers = list(state.values())
        self._ours = [state[p] for p in self.owned]
        self._tensors = [value for entries in self._ours for value in entries.values()]

    # Between plans.

    def untouched(self, state: MutableMapping[torch.Tensor, Any]) -> bool:
        """True if ``opt.state`` has the very tensors that it had. Called in every step."""
        same = _muster.same_objects
        return same([[*state.values()]], self._containers) and same(self._ours, self._tensors)

    def adopt(
        self, state: MutableMapping[torch.Tensor, Any], restart: Callable[[torch.Tensor, str], None]
    ) -> list[torch.Tensor]:
        """Takes over a user's changes to ``opt.state``. Returns the parameters whose state was removed.

        ``restart`` sets an entry to its first value. Raises ValueError that names a parameter, with nothing changed.
        """
        removed, copies, missing = [], [], []
        for parameter, own in self.owned.items():
            given = state.get(parameter)
            if given is not None and not isinstance(given, dict):
                name = self.names[parameter]
                raise ValueError(f"state of '{name}' is a {type(given).__name__}, expected a dict of tensors")
            if not given:
                removed.append(parameter)
            for entry, mine in own.items():
                value = (given or {}).get(entry)
                if value is None and entry not in SHARED:
                    missing.append((parameter, entry))
                elif value is not None and value is not mine:
                    check_fits(self.names[parameter], entry, value, mine)
                    if entry not in SHARED:
                        copies.append((value, mine))
        shared = {e: self._given([s for p in self.owned if (s := state.get(p))], e) for e in SHARED}
        for value, mine in copies:
            fill(value, mine)
        for parameter, entry in missing:
            restart(parameter, entry)
        for entry, value in shared.items():
            self._set_shared(entry, value)
        self.put(state)
        return removed


def first_value(parameter: torch.Tensor, entry: str, mine: torch.Tensor) -> None:
    """Sets an entry to its first value: the weights for a float32 copy of them, else zero."""
    with torch.no_grad():
        if entry == "master":
            local(mine).copy_(local(parameter.detach()))
        else:
            local(mine).zero_()
