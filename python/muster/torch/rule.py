"""Update rules of your own on whole matrices: Muster's distribution, your mathematics."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from .. import _muster
from .errors import whole_number

_SHAPES = {
    ("rows",): _muster.RuleStateShape.rows,
    ("columns",): _muster.RuleStateShape.columns,
    ("rows", "columns"): _muster.RuleStateShape.matrix,
    ("rows", "rows"): _muster.RuleStateShape.rows_by_rows,
    ("columns", "columns"): _muster.RuleStateShape.columns_by_columns,
}


class Rule:
    """An update rule on whole matrices. Derive from it, and give an object of it to ``MatrixOptimizer``.

    The result for a matrix may depend on its update, its state, the group and the step alone: then weights have the same
    bits under any sharding and on any number of ranks. Each rank has its own object and calls it for its matrices.
    """

    state: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What Muster keeps for each matrix, in float32, from zero: names and shapes of "rows" and "columns"."""
    own_momentum: bool = False
    """True: ``update`` gets gradients, rounded to the wire dtype, and Muster keeps no momentum."""
    batched: bool = False
    """True: ``update`` takes several matrices, and gives each the bits that it would give it alone."""
    check_batches: bool = False
    """With ``batched``: run every matrix alone too, and raise ValueError if bits differ. For debugging."""
    threads: int = 1
    """Threads of torch during ``update``: with others, torch may give other bits."""

    def update(
        self, u: torch.Tensor, state: dict[str, torch.Tensor], group: Mapping[str, Any], step: int
    ) -> torch.Tensor:
        """Returns the update that Muster applies, of the shape of ``u``; it may change ``u`` and return it.

        Called without autograd, once per shape when the plan is made (with made-up values, and zeros as the state),
        and in every step.

        Args:
            u: momentum updates, float32, (batch, rows, columns), rounded to the wire dtype. The batch is 1 unless
                ``batched``. Its memory is reused after the call.
            state: the entries of ``Rule.state`` of these matrices, each with the batch in front. Update them in place.
            group: the param group of the matrices.
            step: the number of the step, from 1.
        """
        raise NotImplementedError(f"{type(self).__name__}.update")


class RuleCall:
    """What the engine calls. ``groups`` are the param groups of the step."""

    def __init__(self, rule: Rule, groups: Sequence[Mapping[str, Any]]) -> None:
        self.groups = groups
        self.error: BaseException | None = None  # what the rule raised last
        self._rule = rule
        self._shapes = dict(rule.state)

    def set_rules(self, options: _muster.OptimizerOptions) -> None:
        """Gives the engine this rule for the groups that ask for one."""
        rule = self._rule
        entries = [(name, _SHAPES[tuple(shape)]) for name, shape in self._shapes.items()]
        for number, group in enumerate(self.groups):
            if group["algorithm"] == "rule":
                name = type(rule).__name__
                _muster.set_rule(options, number, name, entries, bool(rule.own_momentum), bool(rule.batched), self)

    def __call__(
        self, updates: int, shape: tuple[int, int, int], state: list[tuple[int, int]], group: int, step: int
    ) -> None:
        try:
            self._update(_memory(updates, shape, shape[1] * shape[2]), self._entries(shape, state), group, step)
        except BaseException as error:
            self.error = error
            raise

    def _entries(self, shape: tuple[int, int, int], state: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        sizes = {"rows": shape[1], "columns": shape[2]}
        return {
            name: _memory(address, (shape[0], *(sizes[side] for side in sides)), stride)
            for (name, sides), (address, stride) in zip(self._shapes.items(), state)
        }

    def _update(self, u: torch.Tensor, state: dict[str, torch.Tensor], group: int, step: int) -> None:
        checked = len(u) if self._rule.check_batches and len(u) > 1 else 0
        alone = [(u[i : i + 1].clone(), {k: v[i : i + 1].clone() for k, v in state.items()}) for i in range(checked)]
        with torch.no_grad(), _threads(self._rule.threads):
            u.copy_(self._result(u, state, group, step))
            for i, (one, its_state) in enumerate(alone):
                one.copy_(self._result(one, its_state, group, step))
                same = [_same_bits(one, u[i : i + 1])]
                same += [_same_bits(its_state[name], state[name][i : i + 1]) for name in state]
                if not all(same):
                    raise ValueError(
                        f"batched=True, but matrix {i} of a batch of {len(u)} has other bits alone; use operations that do"
                        " not depend on the batch, or batched=False"
                    )

    def _result(self, u: torch.Tensor, state: dict[str, torch.Tensor], group: int, step: int) -> torch.Tensor:
        out = self._rule.update(u, state, self.groups[group], step)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"update() returned a {type(out).__name__}, expected a tensor")
        if out.shape != u.shape or out.dtype != u.dtype or out.device != u.device:
            raise ValueError(
                f"update() returned {tuple(out.shape)} of {out.dtype} on {out.device}, expected {tuple(u.shape)} of"
                f" {u.dtype} on {u.device}"
            )
        return out


def check_rule(rule: Rule) -> None:
    """Raises ValueError that names what is wrong with a rule."""
    for name, shape in rule.state.items():
        if tuple(shape) not in _SHAPES:
            known = ", ".join(map(str, _SHAPES))
            raise ValueError(f"rule {type(rule).__name__}: state {name!r} has shape {shape!r}: expected one of {known}")
    whole_number(f"rule {type(rule).__name__}: threads", rule.threads, 1, 4096)


def _memory(address: int, shape: Sequence[int], stride: int) -> torch.Tensor:
    """float32 at an address: ``shape`` has the batch in front, whose stride is given; the rest is dense."""
    inner = 1
    strides: list[int] = []
    for size in reversed(shape[1:]):
        strides.insert(0, inner)
        inner *= size
    count = (shape[0] - 1) * stride + inner
    flat = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
    return flat.as_strided(tuple(shape), (stride, *strides))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
