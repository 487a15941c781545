"""The options of the planner, their checks, and their translation for the engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .. import _muster
from .errors import MAX_INT32, MAX_INT64, shown, whole_number, whole_numbers
from .groups import enum_value

_MOST_WAVES = 1 << 20
_ALL = MAX_INT32  # kAllInFlight


@dataclass(frozen=True)
class PlanOptions:
    """How a step is planned: ``plan=`` of an optimizer, the same on all ranks. It never changes the bits of a step."""

    strategy: str = "global"
    """"global" (default), or a schedule of another system, for comparison: "per_matrix", "chunked", "grouped",
    "megabatch", "routed" or "layerwise". See docs/explanation/planning.md."""
    waves: int = 0
    """With "global", the number of waves. Default 0: chosen by predicted time and ``scratch_mib``."""
    scratch_mib: int | None = None
    """With "global", the most scratch per rank in MiB; 0: no limit. Default: 1024, or 1.5 times the least that
    the model needs if that least is more."""
    groups: Sequence[int] | None = None
    """With "grouped", the number of parameters of each group: [1, 10, 16, 16]. Default: a group per shape, layout."""
    mixed_groups: bool = False
    """With "grouped", a rank may own parameters of several shapes in one group. Default False: that is an error."""
    wave_order: Literal["small_first", "small_last"] | None = None
    """With "global", which matrices are in the first waves. Default "small_first"; not with ``overlap=True``, where
    waves follow the order of the gradients."""
    elementwise: Literal["interleaved", "last", "first"] | None = None
    """With "global", in which waves AdamW and Lion update. Default "interleaved", in all of them; with ``overlap=True``
    only "last"."""
    in_flight: int | Literal["all"] | None = None
    """How many waves arrive ahead of the one that computes, and leave behind it: 1 or more, or "all". Scratch grows
    with it. Default: "grouped" all, "global" by predicted time and ``scratch_mib``, else or with
    ``overlap=True`` 1."""
    cost: str | os.PathLike[str] | None = None
    """The cost table: "cpu", "h200", or a file that ``muster tune`` wrote, which must say the same on all ranks. It is
    read whenever a plan is made. Default: the built-in table of the device."""

    def check(self, overlap: bool) -> None:
        """Raises ValueError that names the option and its value. With ``overlap``, fewer are allowed."""
        self.engine_options("cpu")
        if overlap and self.elementwise not in (None, "last"):
            raise ValueError(f"elementwise {shown(self.elementwise)}: with overlap=True AdamW and Lion update last")
        if overlap and self.wave_order is not None:
            raise ValueError(
                f"wave_order {shown(self.wave_order)}: with overlap=True waves follow the order of the gradients"
            )

    def engine_options(self, device: str) -> _muster.PlanOptions:
        """The same for the engine; ``device`` names the cost table unless the options do. Raises ValueError."""
        out = _muster.PlanOptions()
        if not isinstance(self.strategy, str):
            raise ValueError(f"strategy {shown(self.strategy)}: expected a name")
        out.strategy = self.strategy
        out.waves = whole_number("waves", self.waves, 0, _MOST_WAVES)
        if self.scratch_mib is not None:
            out.scratch_bytes = whole_number("scratch_mib", self.scratch_mib, 0, MAX_INT64 >> 20) << 20
        if self.groups is not None:
            out.groups = _group_sizes(self.groups)
        out.mixed_groups = bool(self.mixed_groups)
        if self.wave_order is not None:
            out.wave_order = enum_value(_muster.WaveOrder, "wave_order", self.wave_order)
        if self.elementwise is not None:
            out.elementwise = enum_value(_muster.ElementwiseOrder, "elementwise", self.elementwise)
        if self.in_flight is not None:
            out.in_flight = _in_flight(self.in_flight)
        for key, value in self._for_one_strategy():
            needed = "grouped" if "groups" in key else "global"
            if self.strategy != needed and value:
                raise ValueError(f"{key} {shown(value)}: is for strategy {needed!r}, not {shown(self.strategy)}")
        out.cost = _cost(self.cost, device)
        return out

    def _for_one_strategy(self) -> list[tuple[str, Any]]:
        """Options that other strategies would ignore."""
        keys = ("waves", "scratch_mib", "groups", "mixed_groups", "wave_order", "elementwise")
        return [(key, getattr(self, key)) for key in keys]


def _in_flight(waves: Any) -> int:
    if isinstance(waves, str) and waves == "all":
        return _ALL
    try:
        return whole_number("in_flight", waves, 1, _MOST_WAVES)
    except ValueError:
        raise ValueError(f"in_flight {shown(waves)}: expected 1 to {_MOST_WAVES}, or 'all'") from None


def _group_sizes(groups: Any) -> list[int]:
    try:
        sizes = whole_numbers("groups", groups, 1, _MOST_WAVES)
    except (TypeError, ValueError):
        sizes = []
    if not sizes or isinstance(groups, (str, bytes)):
        raise ValueError(f"groups {shown(groups)}: expected parameters per group, such as [1, 10, 16, 16]")
    return sizes


def _cost(cost: Any, device: str) -> str:
    if cost is None:
        return device
    try:
        return os.fsdecode(cost)
    except TypeError:
        raise ValueError(f"cost {shown(cost)}: expected 'cpu', 'h200' or the path of a cost table") from None
