"""The options of an optimizer that all its groups share, their checks, and their translation for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch

from .. import _muster
from .errors import MAX_INT32, MAX_INT64, shown, whole_number
from .monitoring import check_every
from .overlap import MONITORED, SCREENED
from .plan_options import PlanOptions
from .qk_clip import QKHeads
from .ranks import check_timeout
from .rule import Rule, check_rule

_WEIGHT_FORMS = {
    "nearest": _muster.WeightForm.bf16,
    "stochastic": _muster.WeightForm.bf16_stochastic,
    "master": _muster.WeightForm.bf16_master,
    "mantissa": _muster.WeightForm.bf16_mantissa,
}
_CHOICES = {
    "wire": ("bf16", "f32"),
    "momentum_dtype": ("bf16", "f32"),
    "bf16_weights": tuple(_WEIGHT_FORMS),
    "communicator": ("auto", "nccl", "process_group"),
    "non_finite": ("ignore", "error", "skip_step", "zero"),
}
_RANGES = {
    "threads": (0, MAX_INT32),
    "seed": (0, MAX_INT64),
}


@dataclass(frozen=True)
class Options:
    """The constructor's arguments, as NorMuon documents them: plain values that can be copied and pickled."""

    communicator: str
    timeout: timedelta
    wire: str
    momentum_dtype: str
    bf16_weights: str
    grad_sync: bool
    replicate_state: bool | None
    non_finite: str
    overlap: bool
    plan: PlanOptions | None
    strategy: str | None
    waves: int | None
    scratch_mib: int | None
    threads: int | None
    graph: bool
    seed: int
    monitor_every: int
    qk_heads: Mapping[str, QKHeads] | None = None
    rule: Rule | None = None

    def check(self) -> None:
        """Raises ValueError naming the option."""
        check_timeout(self.timeout)
        if self.rule is not None:
            check_rule(self.rule)
        for key, known in _CHOICES.items():
            if getattr(self, key) not in known:
                raise ValueError(f"{key} {getattr(self, key)!r}: expected one of {', '.join(known)}")
        for key, (low, high) in _RANGES.items():
            if getattr(self, key) is not None:
                whole_number(key, getattr(self, key), low, high)
        if self.overlap and self.non_finite != "ignore":
            raise ValueError(SCREENED.format(self.non_finite))
        if self.grad_sync and self.replicate_state:
            raise ValueError(
                "replicate_state=True: not with grad_sync=True, where only the rank that updates a parameter has its"
                " averaged gradient; call consolidate_state_dict() on all ranks before rank 0 saves"
            )
        self.check_monitoring()
        self.planning.check(self.overlap)

    def check_monitoring(self) -> None:
        """Raises ValueError naming the option."""
        check_every(self.monitor_every)
        if self.overlap and self.monitor_every:
            raise ValueError(MONITORED.format(self.monitor_every))

    @property
    def first_seed(self) -> int:
        """The seed, or 0 if it is one that check() refuses, on all ranks together."""
        try:
            return whole_number("seed", self.seed, *_RANGES["seed"])
        except ValueError:
            return 0

    @property
    def replicas_keep_state(self) -> bool:
        """True if each replica of a parameter keeps all of its state."""
        return not self.grad_sync if self.replicate_state is None else self.replicate_state

    @property
    def momentum(self) -> torch.dtype:
        return torch.float32 if self.momentum_dtype == "f32" else torch.bfloat16

    def weight_form(self, dtype: torch.dtype) -> _muster.WeightForm:
        return _muster.WeightForm.f32 if dtype == torch.float32 else _WEIGHT_FORMS[self.bf16_weights]

    @property
    def planning(self) -> PlanOptions:
        """The options of the planner, however they were given. Raises ValueError if one was given in two ways."""
        given = {
            key: value
            for key, value in (("strategy", self.strategy), ("waves", self.waves), ("scratch_mib", self.scratch_mib))
            if value is not None
        }
        if self.plan is None:
            return PlanOptions(**given)  # type: ignore[arg-type]
        if not isinstance(self.plan, PlanOptions):
            raise ValueError(f"plan {shown(self.plan)}: expected muster.torch.PlanOptions(...)")
        for key, value in given.items():
            raise ValueError(f"{key} {shown(value)}: not next to plan=; give it as plan=PlanOptions({key}=...)")
        return self.plan

    def step_options(self) -> _muster.StepOptions:
        out = _muster.StepOptions()
        out.non_finite = getattr(_muster.NonFinite, self.non_finite)
        return out

    def engine_options(self, groups: list[_muster.Group], order: list[int], device: Any) -> _muster.OptimizerOptions:
        """``device``: None, or a ``_muster.Device`` on CUDA."""
        out = _muster.OptimizerOptions()
        plan = self.planning.engine_options("cpu" if device is None else "h200")
        plan.order = order
        if device is not None:
            out.device = device
        out.plan, out.groups = plan, groups
        out.momentum = getattr(_muster.Dtype, self.momentum_dtype)
        out.threads = self.threads or torch.get_num_threads()
        out.seed, out.graph, out.overlap = self.seed, self.graph, self.overlap
        return out


NAMES = ("process_group", *(field.name for field in fields(Options)))
