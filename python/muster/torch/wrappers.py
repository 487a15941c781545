"""Detects wrappers of models and optimizers that Muster does not support, and says what to use instead.

Without these checks they would train wrongly or wait for ranks that never come. Checks read attributes that the
wrappers set, so that none of them needs to be installed.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _muster
from .errors import comm_error

FSDP1 = (
    "FullyShardedDataParallel (FSDP1) cuts parameters into flat pieces, which have no rows and columns: shard the "
    "model with FSDP2, torch.distributed.fsdp.fully_shard (accelerate: fsdp_version=2)"
)
NO_GRADIENTS = (
    "no parameter has a gradient in the first step, so nothing is updated: was the optimizer made before fully_shard, "
    "which replaces the parameters, or for another model? Make it after that"
)
DEEPSPEED = (
    "DeepSpeed ZeRO cuts parameters into flat pieces, which have no rows and columns: use FSDP2, or ZeRO stage 0"
)
ZERO_REDUNDANCY = (
    "ZeroRedundancyOptimizer gives each rank other parameters, and Muster's ranks update all of them together: make "
    "the optimizer without it, NorMuon(param_groups(model), replicate_state=False), which divides the state among the "
    "ranks as well"
)
JOIN = (
    "DistributedDataParallel.join(): a rank that has run out of inputs makes no more steps, and the others would wait "
    "for it: give all ranks the same number of batches, or use model.join(throw_on_early_termination=True)"
)
TRAINER = (
    "; in transformers' Trainer give optimizer_cls_and_kwargs=(muster.integrations.transformers.NorMuonFactory, "
    "{'lr': ...}) instead of the class"
)
_FEWER_STEPS = (
    " (Do all ranks make the same number of steps? One that ran out of batches, in DistributedDataParallel.join() "
    "or without it, makes fewer)"
)


def check_parameter(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError if FSDP1 or DeepSpeed ZeRO-3 keeps this parameter in pieces."""
    if getattr(tensor, "_fsdp_flattened", False):
        raise ValueError(f"parameter '{name}': {FSDP1}")
    if hasattr(tensor, "ds_id"):
        raise ValueError(f"parameter '{name}': {DEEPSPEED}")


def check_groups(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raises ValueError if DeepSpeed ZeRO has replaced the parameters of a group with one flat piece of them all.

    The piece is a plain tensor, not a Parameter, without any attribute that marks it.
    """
    if "deepspeed" not in sys.modules:
        return
    for number, group in enumerate(groups):
        if [(type(p), p.ndim) for p in group["params"]] == [(torch.Tensor, 1)]:
            raise ValueError(f"param group {number} is one flat tensor: {DEEPSPEED}")


def check_caller() -> None:
    """Raises ValueError if ZeroRedundancyOptimizer constructs this optimizer, with this rank's part of the parameters.

    Only the call stack shows it: parts of equal shapes look like replicas.
    """
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = None if module is None else sys._getframe(1)
    while frame is not None:
        if issubclass(type(frame.f_locals.get("self")), module.ZeroRedundancyOptimizer):  # type: ignore[union-attr]
            raise ValueError(ZERO_REDUNDANCY)
        frame = frame.f_back


def trainer_hint() -> str:
    """Advice for transformers' Trainer, if it is imported."""
    return TRAINER if "transformers.trainer" in sys.modules else ""


def with_fewer_steps(error: _muster.CommError) -> _muster.CommError:
    """The error; if it is about a rank that did not arrive, with the most common cause."""
    advice = _FEWER_STEPS if error.code == _muster.ErrorCode.rank_missing else ""
    return comm_error(f"{error}{advice}", error.code)


class Surroundings:
    """The wrappers of the model that the parameters of an optimizer belong to.

    An optimizer gets parameters, not the model. So the first step searches the objects of the process, once.
    """

    def __init__(self) -> None:
        self._models: list[tuple[weakref.ref[Any], Any]] | None = None  # under DDP; with its last join config

    @property
    def unknown(self) -> bool:
        """True before the first check, which all ranks make together because its result may differ."""
        return self._models is None

    def check(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError in a join context, or if FSDP1 wrapped the model after this optimizer was made.

        Later checks look only at the models that the first one found.
        """
        if self._models is None:
            if all(p.grad is None for group in groups for p in group["params"]):
                warnings.warn(NO_GRADIENTS, stacklevel=4)
            self._models = _find_models(groups) if dist.is_available() and dist.is_initialized() else []
        for number, (reference, known) in enumerate(self._models):
            model = reference()
            if model is None or model._join_config is known:
                continue
            config = model._join_config  # each join context sets a new one and does not reset it
            self._models[number] = (reference, config)
            if config.enable and not config.throw_on_early_termination:
                raise ValueError(JOIN)


def _find_models(groups: Sequence[Mapping[str, Any]]) -> list[tuple[weakref.ref[Any], Any]]:
    """The models under DDP that have these parameters; each with its join config, None in a join context."""
    kinds = {
        name: _with_subclasses(getattr(sys.modules.get(module), name, None))
        for module, name in (
            ("torch.nn.parallel", "DistributedDataParallel"),
            ("torch.distributed.algorithms.join", "Join"),
            ("torch.distributed.fsdp", "FullyShardedDataParallel"),
        )
    }
    # Types are compared by id: isinstance, or hashing types with metaclasses, would run code of the objects.
    wanted = {id(kind) for members in kinds.values() for kind in members}
    found = [thing for thing in gc.get_objects() if id(type(thing)) in wanted]
    parameters = {id(p) for group in groups for p in group["params"]}
    if all(p.grad is None for group in groups for p in group["params"]):
        for thing in found:
            if type(thing) in kinds["FullyShardedDataParallel"]:
                raise ValueError(f"no parameter has a gradient: {FSDP1}, and make the optimizer after that")
    joined = {id(model) for thing in found if type(thing) in kinds["Join"] for model in thing._joinables}
    return [
        (weakref.ref(model), None if id(model) in joined else model._join_config)
        for model in found
        if type(model) in kinds["DistributedDataParallel"] and any(id(p) in parameters for p in model.parameters())
    ]


def _with_subclasses(kind: type | None) -> set[type]:
    return set() if kind is None else {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
