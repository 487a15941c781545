"""Builds an engine from param groups: reads layouts, makes the problem, passes the memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _muster
from .communicator import Link
from .gradients import DTYPES as GRADIENT_DTYPES
from .gradients import Gradients, planned_dtype
from .hyperparameters import Group, Hyperparameters, JoinedMomentum, make_group
from .layout import TensorLayout, agree, local
from .options import Options
from .overlap import check_device
from .parameter_states import ParameterStates, first_value
from .parameters import DTYPES, Reader, make_parameters
from .qk_clip import RowNumbers, scale_rows
from .rank_local import with_remedies
from .ranks import Ranks
from .rule import RuleCall
from .state import export_state, import_state
from .state_tensors import State, is_uneven_stride, own_mesh_statistics, zero_statistics, zeros_like
from .weights import Weights, check_shared_memory, local_memory
from .wrappers import check_groups


@dataclass
class Connection:
    """The communicator and the device of an optimizer. Kept from plan to plan."""

    ranks: Ranks
    options: Options
    device: torch.device | None = None
    link: Link | None = None

    def connect(self, device: torch.device) -> Link:
        """Connects the ranks, once per device. All ranks together."""
        if self.link is None or device != self.device:
            self.link = Link(self.ranks, device, self.options.communicator, self.options.overlap)
            self.device = device
        return self.link

    @property
    def cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def stream(self) -> int:
        assert self.device is not None
        return torch._C._cuda_getCurrentRawStream(self.device.index)


@dataclass
class Built:
    """An engine and the objects that it was made of. ``names`` and ``tensors`` are its parameters, in its order."""

    engine: _muster.Optimizer
    names: list[str]
    tensors: list[torch.Tensor]
    numbers: list[int]  # per parameter of the groups: its number in the engine; -1 if it has no elements
    flat: list[torch.Tensor]  # all parameters of the groups
    sizes: list[int]  # parameters per group
    weights: Weights
    gradients: Gradients
    hyperparameters: Hyperparameters
    kept_by_engine: dict[str, torch.Tensor]
    uneven: str | None  # the name of a parameter whose placements do not describe where its elements are
    extras: list[torch.Tensor | None]  # per parameter, ParameterMemory::extra
    step_options: _muster.StepOptions
    matrices: list[bool]  # per parameter, True if Muon or NorMuon updates it
    rule: RuleCall | None

    def is_current(self, groups: Sequence[Group]) -> bool:
        """True if the groups have the very tensors that the plan was made for. Called in every step."""
        lists = [group["params"] for group in groups]
        return _muster.same_objects(lists, self.flat) and [*map(len, lists)] == self.sizes

    def has_same_tensors(self, groups: Sequence[Group]) -> bool:
        """True if the groups have the same tensors, in any grouping."""
        return {id(p) for group in groups for p in group["params"]} == set(map(id, self.flat))

    def state_of_engine(self) -> dict[str, State]:
        """The state that only the engine keeps, by parameter name. All ranks together, unless it keeps none."""
        return export_state(self.engine, self.kept_by_engine) if self.kept_by_engine else {}


@dataclass(frozen=True)
class Builder:
    """Makes engines for one optimizer."""

    options: Options
    connection: Connection
    reader: Reader
    joined: JoinedMomentum

    def build(
        self,
        groups: list[Group],
        group_names: list[list[str]],
        states: ParameterStates,
        state: Any,
        exported: dict[str, State],
        order: Sequence[int],
    ) -> Built:
        """Plans and makes an engine. All ranks together; an error of one rank is raised on all.

        ``order`` is the order in which backward reaches parameters, by place in the groups.
        """
        names = [name for of_group in group_names for name in of_group]
        flat = [p for group in groups for p in group["params"]]
        owners = [(number, group) for number, group in enumerate(groups) for _ in group["params"]]
        views, layouts, engine_groups = self._agree(groups, group_names, names, flat)
        shapes = {name: layout.shape for name, layout in zip(names, layouts)}
        rows = RowNumbers(self.options.qk_heads).by_parameter(groups, group_names, shapes)
        there = [i for i, layout in enumerate(layouts) if math.prod(layout.shape) > 0]
        numbers = [-1] * len(flat)
        for number, i in enumerate(there):
            numbers[i] = number
        parameters, meshes = make_parameters(self.connection.ranks, layouts, flat, [group for _, group in owners])
        self._choose_keepers(parameters, layouts, flat)
        problem = self._problem([parameters[i] for i in there], meshes)
        device = self.reader.device or torch.device("cpu")
        link = self.connection.connect(device)

        updates = torch.zeros(len(there), dtype=torch.int64, device=device)
        slots = _Slots(self.options, problem, self.connection.ranks.rank, flat, views, parameters, numbers, updates)
        rest = states.carry_over(state, dict(zip(flat, names)), exported, slots.make)
        tensors, kept = [flat[i] for i in there], [names[i] for i in there]
        weights = Weights(kept, tensors, self.options.overlap)
        extras = [slots.extra(i, states.owned[flat[i]]) for i in there]
        memory = [
            slots.memory(i, weights.addresses[number], owners[i][0], states.owned[flat[i]], extras[number])
            for number, i in enumerate(there)
        ]
        in_order = [numbers[i] for i in order if numbers[i] >= 0]
        engine_options = self.options.engine_options(engine_groups, in_order, self._device())
        engine_options.steps_address = states.counts.data_ptr()
        engine_options.updates_address = updates.data_ptr()
        scale_rows(engine_options, rows, dict(zip(names, numbers)))
        rule = None if self.options.rule is None else RuleCall(self.options.rule, groups)
        if rule is not None:
            rule.set_rules(engine_options)
        engine = self._make(problem, engine_options, link, memory, dict(zip(kept, tensors)))
        by_engine = {names[i]: flat[i] for i in there if not slots.holds(i)}
        if by_engine:
            given = {name: rest[tensor] for name, tensor in by_engine.items()}
            import_state(engine, given, by_engine)
        dtypes = [slots.gradient_dtype(i) for i in there]
        gradients = Gradients(kept, tensors, dtypes, fixed=self.options.grad_sync)
        members = [[numbers[i] for i, (g, _) in enumerate(owners) if g == number] for number in range(len(groups))]

        def negate(group: int, maximize: bool) -> None:
            changed = {number for number in members[group] if number >= 0}
            gradients.negated = gradients.negated | changed if maximize else gradients.negated - changed

        return Built(
            engine,
            kept,
            tensors,
            numbers,
            flat,
            [len(group["params"]) for group in groups],
            weights,
            gradients,
            Hyperparameters(groups, group_names, [engine.group(g) for g in range(len(groups))], self.joined, negate),
            by_engine,
            next((name for name, tensor in zip(kept, tensors) if is_uneven_stride(tensor)), None),
            extras,
            self.options.step_options(),
            [owners[i][1]["algorithm"] in ("muon", "normuon") for i in there],
            rule,
        )

    def _agree(
        self, groups: list[Group], group_names: list[list[str]], names: list[str], flat: list[torch.Tensor]
    ) -> tuple[list[TensorLayout], list[TensorLayout], list[_muster.Group]]:
        """Returns the layouts that this rank sees, those that all ranks agree on, and the engine's groups."""
        views: list[TensorLayout] = []
        engine_groups: list[_muster.Group] = []
        error = None
        self.reader.device = None
        try:
            self.joined.join_all(groups)
            check_groups(groups)
            views = [self.reader.read(name, p) for name, p in zip(names, flat)]
            if self.options.overlap:
                for name, p in zip(names, flat):
                    check_device(name, p, local_memory(p).device)
            check_shared_memory(names, [local_memory(p) for p in flat])
            engine_groups = [
                make_group(_muster.Group(), number, group, of_group)
                for number, (group, of_group) in enumerate(zip(groups, group_names))
            ]
        except (ValueError, TypeError) as caught:
            error = str(caught)
        kind = None if self.reader.device is None else self.reader.device.type
        return views, agree(self.connection.ranks, views, kind, error), engine_groups

    def _choose_keepers(
        self, parameters: list[_muster.Parameter], layouts: list[TensorLayout], flat: list[torch.Tensor]
    ) -> None:
        """Sets who keeps the state and the dtype of gradients, the same on all ranks. All ranks together."""
        ranks = self.connection.ranks
        seen = [planned_dtype(p) for p in flat]
        everybody = ranks.gather("the dtypes of gradients", [str(dtype) for dtype in seen])
        known = {str(dtype): dtype for dtype in GRADIENT_DTYPES}
        for i, (parameter, layout) in enumerate(zip(parameters, layouts)):
            copies = ranks.size // math.prod(
                size for (_, size), p in zip(layout.axes, layout.placements) if p.dim is not None
            )
            ruled = parameter.algorithm == _muster.Algorithm.rule  # the owner keeps its state
            if not ruled and (copies == 1 or self.options.replicas_keep_state):
                parameter.state_keeper = _muster.StateKeeper.holders
            theirs = {known[dtypes[i]] for dtypes in everybody if dtypes[i] in known}
            if theirs and not self.options.grad_sync:  # float32 if ranks differ: it holds both
                parameter.grad_dtype = DTYPES[torch.float32 if torch.float32 in theirs else torch.bfloat16]

    def _problem(self, parameters: list[_muster.Parameter], meshes: list[_muster.Mesh]) -> _muster.Problem:
        problem = _muster.Problem()
        problem.model, problem.ranks = "torch", self.connection.ranks.size
        problem.meshes, problem.parameters = meshes, parameters
        problem.wire, problem.grad_sync = getattr(_muster.Dtype, self.options.wire), self.options.grad_sync
        return problem

    def _device(self) -> _muster.Device | None:
        device = self.connection.device
        if device is None or device.type != "cuda":
            return None
        return _muster.Device.cuda(device.index, self.connection.stream())

    def _make(
        self,
        problem: _muster.Problem,
        options: _muster.OptimizerOptions,
        link: Link,
        memory: list[_muster.ParameterMemory],
        parameters: dict[str, torch.Tensor],
    ) -> _muster.Optimizer:
        try:
            return _muster.Optimizer(problem, options, link.communicator, memory)
        except ValueError as refused:
            text = with_remedies(refused, parameters)
            if getattr(refused, "code", None) == _muster.ErrorCode.scratch_cap_too_small:
                text = f"scratch_mib: {text}"
            refused.args = (text,)
            raise


@dataclass
class _Slots:
    """The state entries of each parameter, by its place in the groups."""

    options: Options
    problem: _muster.Problem
    rank: int
    tensors: list[torch.Tensor]
    views: list[TensorLayout]
    parameters: list[_muster.Parameter]
    numbers: list[int]
    updates: torch.Tensor

    def __post_init__(self) -> None:
        self._statistics = functools.cache(lambda rank: _muster.statistics(self.problem, rank))

    def _statistics_of(self, number: int, rank: int) -> tuple[list[int], list[int], list[int]]:
        found = self._statistics(rank)[number]
        assert found is not None  # NorMuon's, kept by holders
        return found

    def holds(self, place: int) -> bool:
        return bool(self.parameters[place].state_keeper == _muster.StateKeeper.holders)

    def gradient_dtype(self, place: int) -> torch.dtype:
        return torch.float32 if self.parameters[place].grad_dtype == _muster.Dtype.f32 else torch.bfloat16

    def make(self, place: int, tensor: torch.Tensor) -> State:
        """The entries of a parameter with their first values."""
        parameter, number = self.parameters[place], self.numbers[place]
        out: State = {}
        if self.holds(place):
            algorithm = parameter.algorithm
            if algorithm in (_muster.Algorithm.muon, _muster.Algorithm.normuon):
                out["momentum"] = zeros_like(tensor, self.options.momentum)
            else:
                out["first"] = zeros_like(tensor, torch.float32)
            if algorithm == _muster.Algorithm.adamw:
                out["second"] = zeros_like(tensor, torch.float32)
            if algorithm == _muster.Algorithm.normuon and number >= 0:
                by_rank = functools.partial(self._statistics_of, number)
                statistics = own_mesh_statistics(tensor, by_rank, self.rank, self.views[place].ranks)
                out["variance"] = zero_statistics(tensor, statistics)
            form = self.options.weight_form(tensor.dtype)
            for entry, kind, dtype in (
                ("master", _muster.WeightForm.bf16_master, torch.float32),
                ("mantissa", _muster.WeightForm.bf16_mantissa, torch.uint16),
            ):
                if form == kind:
                    out[entry] = zeros_like(tensor, dtype)
                    first_value(tensor, entry, out[entry])
        out["updates"] = self.updates[number] if number >= 0 else torch.zeros((), dtype=torch.int64)
        return out

    def extra(self, place: int, entries: State) -> torch.Tensor | None:
        """The second piece of memory of a form of bfloat16 weights: an entry, or memory of its own."""
        for entry in ("master", "mantissa"):
            if entry in entries:
                return local(entries[entry])
        tensor = self.tensors[place]
        form = self.options.weight_form(tensor.dtype)
        if form == _muster.WeightForm.bf16_master:
            return local_memory(tensor).float().contiguous()
        if form == _muster.WeightForm.bf16_mantissa:
            return torch.zeros(local_memory(tensor).shape, dtype=torch.uint16, device=tensor.device)
        return None

    def memory(
        self, place: int, weight: int, group: int, entries: State, extra: torch.Tensor | None
    ) -> _muster.ParameterMemory:
        addresses = {entry: local(value).data_ptr() for entry, value in entries.items()}
        first = addresses.get("momentum", addresses.get("first", 0))
        return _muster.ParameterMemory(
            weight,
            self.options.weight_form(self.tensors[place].dtype),
            group,
            0 if extra is None else extra.data_ptr(),
            first,
            addresses.get("second", 0),
            addresses.get("variance", 0),
        )


