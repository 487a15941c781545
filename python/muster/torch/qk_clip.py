"""QK-clip: query and key rows are scaled down where the largest attention logit of their head is too large."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import _muster
from .errors import shown

if TYPE_CHECKING:
    from .ranks import Ranks

_POWERS = (0.5, 1.0)


@dataclass(frozen=True)
class HeadRows:
    """Rows of a parameter that belong to heads: of key head h, ``size`` rows from ``first + h * stride`` on.

    A row is a line along the last dimension of the parameter; in a vector, such as a bias, each element is a row. With
    grouped queries the rows of all query heads of key head h count as one block.

    Args:
        parameter: its name, as the optimizer's param groups have it.
        size: rows per key head.
        first: the first row of key head 0. Default 0.
        stride: rows from one key head to the next. Default ``size``.
        power: rows are multiplied by (tau / largest logit) ** power: 0.5 (default) or 1.
    """

    parameter: str
    """Its name."""
    size: int
    """Rows per key head."""
    first: int = 0
    """The first row of key head 0."""
    stride: int | None = None
    """Rows from one key head to the next; None: ``size``."""
    power: float = 0.5
    """Of tau / largest logit: 0.5 or 1."""

    @property
    def step(self) -> int:
        """Rows from one key head to the next."""
        return self.size if self.stride is None else self.stride


@dataclass(frozen=True)
class QKHeads:
    """Which rows of which parameters are the query and key rows of the heads of one attention layer.

    ``separate``, ``fused`` and ``latent`` make the usual ones.

    Args:
        heads: query heads.
        key_heads: key heads, which divide the query heads; consecutive query heads share one.
        rows: all rows that QK-clip scales.
    """

    heads: int
    """Query heads."""
    key_heads: int
    """Key heads."""
    rows: tuple[HeadRows, ...]
    """All rows that are scaled."""

    @classmethod
    def separate(cls, query: str, key: str, *, heads: int, head_dim: int, key_heads: int | None = None) -> QKHeads:
        """Separate query and key projections whose rows are heads of ``head_dim`` rows each.

        Args:
            query: name of the query projection, with ``heads * head_dim`` rows.
            key: name of the key projection, with ``key_heads * head_dim`` rows.
            heads: query heads.
            head_dim: rows per head.
            key_heads: fewer than ``heads`` for grouped queries. Default: ``heads``.
        """
        keys = heads if key_heads is None else key_heads
        per_key = heads // keys if keys > 0 else 1
        return cls(heads, keys, (HeadRows(query, per_key * head_dim), HeadRows(key, head_dim)))

    @classmethod
    def fused(cls, qkv: str, *, heads: int, head_dim: int, key_heads: int | None = None) -> QKHeads:
        """One projection whose rows are all queries, then all keys, then all values.

        Args:
            qkv: its name.
            heads: query heads.
            head_dim: rows per head.
            key_heads: fewer than ``heads`` for grouped queries. Default: ``heads``.
        """
        keys = heads if key_heads is None else key_heads
        per_key = heads // keys if keys > 0 else 1
        return cls(heads, keys, (HeadRows(qkv, per_key * head_dim), HeadRows(qkv, head_dim, heads * head_dim)))

    @classmethod
    def latent(cls, query: str, key_value: str, *, heads: int, content: int, rotary: int, value: int) -> QKHeads:
        """Multi-head latent attention: the rotary key is shared by all heads and stays as it is.

        Args:
            query: name of the projection to queries; per head ``content`` rows, then ``rotary`` rows, which are scaled
                by tau / largest logit.
            key_value: name of the projection from the latent vector; per head ``content`` key rows, then ``value``
                rows.
            heads: heads.
            content: rows per head without rotary embedding.
            rotary: rotary rows per query head.
            value: value rows per head.
        """
        per_query = content + rotary
        return cls(
            heads,
            heads,
            (
                HeadRows(query, content, 0, per_query),
                HeadRows(query, rotary, content, per_query, power=1.0),
                HeadRows(key_value, content, 0, content + value),
            ),
        )

    def check(self, layer: str) -> None:
        """Raises ValueError that names the layer."""
        for what, value in (("heads", self.heads), ("key_heads", self.key_heads)):
            if type(value) is not int or value < 1:
                raise ValueError(f"qk_heads: layer '{layer}': {what} {shown(value)}: expected a whole number above 0")
        if self.heads % self.key_heads:
            raise ValueError(
                f"qk_heads: layer '{layer}': key_heads {self.key_heads}: expected a divisor of {self.heads} heads"
            )
        for rows in self.rows:
            numbers = {"size": rows.size, "first": rows.first, "stride": rows.step}
            for what, value in numbers.items():
                least = 0 if what == "first" else 1
                if type(value) is not int or value < least:
                    raise ValueError(
                        f"qk_heads: layer '{layer}': parameter '{rows.parameter}': {what} {shown(value)}: expected a"
                        f" whole number, at least {least}"
                    )
            if rows.power not in _POWERS:
                raise ValueError(
                    f"qk_heads: layer '{layer}': parameter '{rows.parameter}': power {shown(rows.power)}: expected 0.5"
                    " or 1"
                )


class RowNumbers:
    """The factor of every row: that of key head h of the declared layers has number ``h``, or ``slots + h`` to the
    power 1. Layers follow each other in the order of their declaration."""

    def __init__(self, heads: Mapping[str, QKHeads] | None) -> None:
        self.heads: dict[str, QKHeads] = {}
        self.first: dict[str, int] = {}
        self.slots = 0
        if heads is None:
            return
        if not isinstance(heads, Mapping):
            raise ValueError(f"qk_heads {shown(heads)}: expected a dict of layers to QKHeads")
        for layer, declared in heads.items():
            if not isinstance(declared, QKHeads):
                raise ValueError(f"qk_heads: layer '{layer}': {shown(declared)}: expected a QKHeads")
            declared.check(layer)
            self.heads[layer], self.first[layer] = declared, self.slots
            self.slots += declared.key_heads

    def by_parameter(
        self,
        groups: Sequence[dict[str, Any]],
        names: Sequence[Sequence[str]],
        shapes: Mapping[str, Sequence[int] | None],
    ) -> dict[str, list[int]]:
        """The number of every row of the parameters that are scaled, -1 for none. Raises ValueError.

        ``shapes`` are those of whole tensors; parameters whose shape is not known yet are left out.
        """
        known = {name: group for group, of in zip(groups, names) for name in of}
        out: dict[str, list[int]] = {}
        for layer, declared in self.heads.items():
            for rows in declared.rows:
                where = f"qk_heads: layer '{layer}': parameter '{rows.parameter}'"
                if rows.parameter not in known:
                    raise ValueError(f"{where}: not in the param groups")
                if known[rows.parameter]["output_dim"] == 1:
                    raise ValueError(f"{where}: output_dim 1: expected 0, rows that are outputs")
                shape = shapes[rows.parameter]
                if shape is None:
                    continue
                there = math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)
                end = rows.first + (declared.key_heads - 1) * rows.step + rows.size
                if end > there:
                    raise ValueError(f"{where}: rows up to {end}, and it has {there}")
                numbers = out.setdefault(rows.parameter, [-1] * there)
                shift = self.first[layer] + (self.slots if rows.power == 1 else 0)
                for head in range(declared.key_heads):
                    begin = rows.first + head * rows.step
                    for row in range(begin, begin + rows.size):
                        if numbers[row] >= 0:
                            raise ValueError(f"{where}: row {row} belongs to two heads")
                        numbers[row] = shift + head
        return out


class QKClip:
    """The factors of the next step, in memory that stays where it is."""

    def __init__(self, numbers: RowNumbers, ranks: Ranks) -> None:
        self.numbers, self._ranks = numbers, ranks
        self.factors: torch.Tensor | None = None
        self.pending = False

    def address(self) -> tuple[int, int]:
        """Where the factors of the next step are, and how many; (0, 0): it has none."""
        if not self.pending or self.factors is None:
            return 0, 0
        return self.factors.data_ptr(), self.factors.numel()

    @torch.no_grad()
    def take(self, given: Any, tau: float, device: torch.device, error: str | None) -> None:
        """Combines the maxima of all ranks in one reduction and sets the factors. All ranks together."""
        largest = torch.full((self.numbers.slots,), -math.inf, device=device)
        try:
            if error is not None:
                raise ValueError(error)
            self._fill(largest, given, tau)
        except (ValueError, TypeError, RuntimeError) as caught:
            error = str(caught)
            largest.fill_(math.inf)  # other ranks learn of it, and none waits
        if self.numbers.slots:
            self._ranks.largest("qk_clip", largest)
        if error is not None:
            raise ValueError(error)
        if device.type == "cpu" and bool((largest == math.inf).any()):
            raise ValueError("qk_clip: another rank refused its maxima")
        # On CUDA an infinite maximum becomes NaN, with which the engine refuses the step.
        factor = torch.where(largest > tau, tau / largest, 1.0).masked_fill_(largest == math.inf, math.nan)
        if self.factors is None or self.factors.device != device:
            self.factors = torch.ones(2 * self.numbers.slots, device=device)
        torch.cat([factor.sqrt(), factor], out=self.factors)
        self.pending = True

    def _fill(self, largest: torch.Tensor, given: Any, tau: float) -> None:
        if not self.numbers.heads:
            raise ValueError("qk_clip: the optimizer was made without qk_heads")
        if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not (math.isfinite(tau) and tau > 0):
            raise ValueError(f"qk_clip: tau {shown(tau)}: expected a finite number above 0")
        if not isinstance(given, Mapping):
            raise ValueError(f"qk_clip: max_logits {shown(given)}: expected a dict of layers to maxima per head")
        for layer, maxima in given.items():
            if layer not in self.numbers.heads:
                known = ", ".join(map(repr, list(self.numbers.heads)[:3]))
                raise ValueError(f"qk_clip: layer '{layer}': not in qk_heads, which has {known}...")
            heads, first = self.numbers.heads[layer], self.numbers.first[layer]
            values = torch.as_tensor(maxima, device=largest.device).detach().float()
            if tuple(values.shape) != (heads.heads,):
                raise ValueError(
                    f"qk_clip: layer '{layer}': maxima of shape {tuple(values.shape)}, expected ({heads.heads},): one"
                    " per head"
                )
            values = torch.where(values.isnan(), math.inf, values)
            if largest.device.type == "cpu" and bool((values == math.inf).any()):
                head = int((values == math.inf).nonzero()[0])
                raise ValueError(
                    f"qk_clip: layer '{layer}': the maximum of head {head} is {float(torch.as_tensor(maxima)[head])}:"
                    " expected a number below infinity"
                )
            largest[first : first + heads.key_heads] = values.view(heads.key_heads, -1).amax(1)


def scale_rows(options: _muster.OptimizerOptions, rows: Mapping[str, list[int]], numbers: Mapping[str, int]) -> None:
    """Tells the engine which factor each row has. ``numbers`` are those of parameters; -1: it has no elements."""
    for name, factor_of_row in rows.items():
        if numbers[name] >= 0:
            options.scale_rows(numbers[name], factor_of_row)


__all__ = ["HeadRows", "QKClip", "QKHeads", "RowNumbers", "scale_rows"]
