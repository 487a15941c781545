"""Copies the values of param groups into the engine's groups, in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _muster
from .group_keys import check_fixed, fixed_values, plain_values
from .groups import MATRIX_ALGORITHMS, fill_group

Group = dict[str, Any]


class JoinedMomentum:
    """Keeps ``momentum`` and ``betas[0]`` equal in groups of AdamW and Lion; the one that changed last wins.

    Schedulers that cycle momentum write ``momentum``; users of AdamW write ``betas``.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Group, float]] = {}  # by id of the group, which is kept alive

    def join(self, group: Group) -> None:
        if group["algorithm"] in MATRIX_ALGORITHMS:
            return
        momentum, betas = group["momentum"], group["betas"]
        _, last = self._values.get(id(group), (group, momentum))
        if momentum != betas[0]:
            if momentum == last:
                group["momentum"] = momentum = betas[0]
            else:
                group["betas"] = type(betas)((momentum, *betas[1:]))
        self._values[id(group)] = (group, float(momentum))

    def join_all(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.join(group)
        kept = set(map(id, groups))
        self._values = {key: value for key, value in self._values.items() if key in kept}


def make_group(out: _muster.Group, number: int, group: Group, names: Sequence[str]) -> _muster.Group:
    """Fills ``out`` from a param group. Raises ValueError that names the group and its first parameter."""
    try:
        fill_group(out, group)
        bool(group["maximize"])
        out.validate()
    except KeyError as missing:
        raise ValueError(f"param group {number}: {missing} is missing") from None
    except (ValueError, TypeError) as bad:
        of = f" (of '{names[0]}')" if names else ""
        raise ValueError(f"param group {number}{of}: {bad}") from None
    return out


class Hyperparameters:
    """The groups of an engine. ``names`` has the names of each group's parameters."""

    def __init__(
        self,
        groups: Sequence[Group],
        names: Sequence[Sequence[str]],
        engine_groups: Sequence[_muster.Group],
        joined: JoinedMomentum,
        negate: Callable[[int, bool], None],
    ) -> None:
        self._names, self._engine_groups, self._joined, self._negate = names, engine_groups, joined, negate
        self._fixed = [fixed_values(group) for group in groups]
        self._filled: list[tuple[Any, ...] | None] = [None] * len(groups)

    def update(self, groups: Sequence[Group]) -> None:
        """Copies the values that have changed. Raises ValueError that names the group."""
        for number, group in enumerate(groups):
            check_fixed(number, group, self._fixed[number])
            values = plain_values(group)
            if values is None or values != self._filled[number]:
                self._filled[number] = None  # in case the following raises
                self._joined.join(group)
                make_group(self._engine_groups[number], number, group, self._names[number])
                self._negate(number, bool(group["maximize"]))
                self._filled[number] = plain_values(group)
