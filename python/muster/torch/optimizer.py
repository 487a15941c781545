"""The optimizers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .. import _muster
from . import timeline
from .communicator import Link, gather
from .gradients import Gradients
from .groups import DEFAULTS, bare_name, check_keys, fill_group, make_parameter
from .layout import Meshes, TensorLayout, local, local_shape, merge, read_layout
from .state import check_overlap, export_state, import_state

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT
    from typing_extensions import Unpack

    from .groups import MoreOptions

_DTYPES = {torch.float32: _muster.Dtype.f32, torch.bfloat16: _muster.Dtype.bf16}
_WEIGHT_FORMS = {
    "nearest": _muster.WeightForm.bf16,
    "stochastic": _muster.WeightForm.bf16_stochastic,
    "master": _muster.WeightForm.bf16_master,
    "mantissa": _muster.WeightForm.bf16_mantissa,
}
Result = TypeVar("Result")
_HOW_TO_DECLARE = (
    " If its ranks are to differ (rank-local experts, say), say so: make it a DTensor, or give its group"
    " mesh=... and placements=[Shard(0)]. If they belong to another stage, give process_group=..."
)


class Plan(dict[str, Any]):
    """A plan: the object that ``muster plan --json`` prints; as text, its table."""

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self._text = text

    def __str__(self) -> str:
        return self._text


class NorMuon(torch.optim.Optimizer):
    """NorMuon for matrices, with AdamW or Lion groups beside it, on one rank or many.

    All ranks of ``process_group`` (default: the world, where torch.distributed is initialized) make the same calls:
    construction, ``step``, ``state_dict`` and so on are collective. The same gradients give the same bits under any
    sharding and on any number of ranks.

    Args:
        params: tensors, (name, tensor) pairs, or groups of either. ``muster.torch.param_groups(model)`` makes them; the
            keys of a group are those of ``muster.torch.groups.DEFAULTS``. Parameters are float32 or bfloat16, all on
            the CPU or all on one CUDA device, contiguous: plain tensors (alike on all ranks, as DDP keeps them) or
            DTensors. Those of a matrix group have the shape (output, input), or (..., output, input): a stack; those of
            AdamW and Lion any shape. Gradients have the shape, dtype and layout of their parameters.
        lr: learning rate of every group without its own; so are the next arguments. Default 0.02.
        weight_decay: decoupled, per step, times lr. Default 0.
        momentum: of Muon and NorMuon. Default 0.95.
        betas: of AdamW and Lion; the second is NorMuon's too. Default (0.9, 0.95).
        defaults: any other key of a group: ``scale="rms"``, ``coefficients="jordan"``, ``every=2``, ...
        process_group: whose ranks share these parameters, with Gloo for the CPU. Default: the world.
        communicator: "nccl", "process_group" or "auto" (default): NCCL on CUDA, if it can be used, else the process
            group.
        timeout: how long a rank waits for another before it raises CommError. Default 10 minutes.
        wire: "bf16" (default) or "f32": what updates are rounded to and travel in; part of the maths, on one rank too.
        momentum_dtype: "f32" (default) or "bf16".
        bf16_weights: how bfloat16 weights are rounded: "nearest" (default), "stochastic", or exact by a "master"
            (float32 copy) or a "mantissa" (16 more bits) that this optimizer keeps.
        grad_sync: Muster averages gradients of plain tensors itself: train without DDP. Default False.
        non_finite: "ignore" (default), "error", "skip_step" or "zero": what to do about NaN and infinity in gradients.
        strategy, waves, scratch_mib: how to plan; see docs/planner.md. Default "global", 0 (chosen), 1024.
        threads: of one rank, on the CPU; default torch.get_num_threads().
        graph: on CUDA a step is recorded once and replayed (default); off: for whoever looks for an error.
        seed: of stochastic rounding. Default 0.
    """

    _algorithm = "normuon"
    _engine: _muster.Optimizer  # when all groups are there

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        process_group: dist.ProcessGroup | None = None,
        communicator: str = "auto",
        timeout: timedelta = timedelta(minutes=10),
        wire: str = "bf16",
        momentum_dtype: str = "f32",
        bf16_weights: str = "nearest",
        grad_sync: bool = False,
        non_finite: str = "ignore",
        strategy: str = "global",
        waves: int = 0,
        scratch_mib: int = 1024,
        threads: int | None = None,
        graph: bool = True,
        seed: int = 0,
        **defaults: Unpack[MoreOptions],
    ) -> None:
        if process_group is None and dist.is_available() and dist.is_initialized():
            process_group = dist.group.WORLD
        self._process_group = process_group
        self._rank = 0 if process_group is None else dist.get_rank(process_group)
        self._ranks = 1 if process_group is None else dist.get_world_size(process_group)
        self._timeout, self._backend = timeout, communicator
        self._link: Link | None = None
        self._device: torch.device | None = None
        self._cuda = False
        for key, value, known in (
            ("wire", wire, ("bf16", "f32")),
            ("momentum_dtype", momentum_dtype, ("bf16", "f32")),
            ("bf16_weights", bf16_weights, tuple(_WEIGHT_FORMS)),
            ("communicator", communicator, ("auto", "nccl", "process_group")),
            ("non_finite", non_finite, ("ignore", "error", "skip_step", "zero")),
        ):
            if value not in known:
                raise ValueError(f"{key} {value!r}: expected one of {', '.join(known)}")
        self._bf16_form = _WEIGHT_FORMS[bf16_weights]
        self._wire = getattr(_muster.Dtype, wire)
        self._grad_sync = grad_sync
        self._options = _muster.OptimizerOptions()
        plan = _muster.PlanOptions()
        plan.strategy, plan.waves, plan.scratch_bytes = strategy, waves, scratch_mib << 20
        self._options.plan = plan
        self._options.momentum = getattr(_muster.Dtype, momentum_dtype)
        self._options.threads = threads or torch.get_num_threads()
        self._options.seed = seed
        self._options.graph = graph
        self._step_options = _muster.StepOptions()
        self._step_options.non_finite = getattr(_muster.NonFinite, non_finite)
        chosen = {
            **DEFAULTS,
            "algorithm": self._algorithm,
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "betas": betas,
            **defaults,
        }
        check_keys(chosen)
        self._declared: dict[torch.Tensor, Any] = {}
        super().__init__(params, chosen)
        self._build()

    # Construction.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; with it a new plan is made, and what there is of state is kept. All ranks together."""
        check_keys(param_group)
        mesh, placements = param_group.pop("mesh", None), param_group.pop("placements", None)
        if (mesh is None) != (placements is None):
            raise ValueError("param group: mesh and placements belong together")
        built = hasattr(self, "_engine")  # torch's constructor adds group after group
        state = export_state(self._engine, self._by_name) if built else {}
        super().add_param_group(param_group)
        if mesh is not None:
            for parameter in self.param_groups[-1]["params"]:
                self._declared[parameter] = (mesh, tuple(placements))
        if not built:
            return
        try:
            self._build()
        except Exception:
            self.param_groups.pop()
            raise
        import_state(self._engine, state)

    def _build(self) -> None:
        """Plans for the groups as they are now."""
        names = self._name_parameters()
        tensors = [p for group in self.param_groups for p in group["params"]]
        layouts: list[TensorLayout] = []
        parameters: list[_muster.Parameter] = []
        error = None
        try:
            layouts = [self._read(name, p) for name, p in zip(names, tensors)]
            check_overlap(names, [local(p) for p in tensors])
            self._options.groups = self._make_groups(names)
            owners = [group for group in self.param_groups for _ in group["params"]]
            parameters = [
                make_parameter(s.name, s.shape, _DTYPES[p.dtype], g) for s, p, g in zip(layouts, tensors, owners)
            ]
        except (ValueError, TypeError) as caught:
            error = str(caught)
        meshes = Meshes()
        for parameter, layout in zip(parameters, self._agree(layouts, error)):
            parameter.layout = meshes.layout(layout)
        link = self._connect()

        problem = _muster.Problem()
        problem.model, problem.ranks = "torch", self._ranks
        problem.meshes, problem.parameters = meshes.meshes, parameters
        problem.wire, problem.grad_sync = self._wire, self._grad_sync
        forms = [_muster.WeightForm.f32 if p.dtype == torch.float32 else self._bf16_form for p in tensors]
        extras = [_extra(local(p), form) for p, form in zip(tensors, forms)]
        numbers = [number for number, group in enumerate(self.param_groups) for _ in group["params"]]
        memory = [
            _muster.ParameterMemory(local(p).data_ptr(), form, number, 0 if extra is None else extra.data_ptr())
            for p, form, number, extra in zip(tensors, forms, numbers, extras)
        ]
        try:
            self._engine = _muster.Optimizer(problem, self._options, link.communicator, memory)
        except ValueError as refused:
            if "replicas start from different weights" in str(refused):
                raise ValueError(f"{refused}.{_HOW_TO_DECLARE}") from None
            raise
        self._names, self._tensors, self._extras = names, tensors, extras
        self._by_name = dict(zip(names, tensors))
        self._gradients = Gradients(names, tensors)
        self._mark_state()
        self._engine_groups = [self._engine.group(g) for g in range(len(self.param_groups))]

    def _make_groups(self, names: list[str]) -> list[_muster.Group]:
        groups, at = [], 0
        for index, group in enumerate(self.param_groups):
            groups.append(_muster.Group())
            try:
                fill_group(groups[-1], group)
                groups[-1].validate()
            except (ValueError, TypeError) as bad:
                first = f" (of '{names[at]}')" if group["params"] else ""
                raise ValueError(f"param group {index}{first}: {bad}") from None
            at += len(group["params"])
        return groups

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Whose ranks share the parameters; None: this process alone."""
        return self._process_group

    @property
    def names(self) -> list[str]:
        """Of the parameters, in the order of the groups."""
        return list(self._names)

    def _name_parameters(self) -> list[str]:
        """The names torch was given, without what wrappers put in front; else by group and place."""
        names = []
        for g, group in enumerate(self.param_groups):
            given = group.get("param_names") or [f"group{g}.param{i}" for i in range(len(group["params"]))]
            names += [bare_name(name) for name in given]
        return names

    def _read(self, name: str, tensor: torch.Tensor) -> TensorLayout:
        """Checks a parameter and reads its layout."""
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"parameter '{name}': {tensor.dtype} is not supported; float32 and bfloat16 are")
        mine = local(tensor)
        self._check_device(name, mine.device)
        if not mine.is_contiguous():
            raise ValueError(
                f"parameter '{name}': not contiguous, strides {mine.stride()} of shape {tuple(mine.shape)}"
            )
        layout = read_layout(name, tensor, self._process_group, self._declared.get(tensor))
        if isinstance(tensor, DTensor):
            expected = local_shape(layout, self._rank)
            elements = 1
            for size in expected:
                elements *= size
            if mine.numel() != elements or (elements and tuple(mine.shape) != expected):
                raise ValueError(
                    f"parameter '{name}': rank {self._rank} has {tuple(mine.shape)} of it, where "
                    f"{tensor.placements} of {tuple(tensor.shape)} says {expected}"
                )
        return layout

    def _agree(self, layouts: list[TensorLayout], error: str | None) -> list[TensorLayout]:
        """One list of layouts from what all ranks see. Raises what any rank found wrong, on all of them."""
        if self._ranks == 1:
            if error is not None:
                raise ValueError(error)
            return layouts
        kind = None if self._device is None else self._device.type
        everybody = gather(self._process_group, (layouts, kind, error))
        for rank, (_, _, theirs) in enumerate(everybody):
            if theirs is not None:
                raise ValueError(theirs if theirs == error else f"rank {rank}: {theirs}")
        for rank, (theirs, kind, _) in enumerate(everybody):
            if kind != everybody[0][1]:
                raise ValueError(f"ranks disagree: rank 0 is on {everybody[0][1]} and rank {rank} is on {kind}")
            if len(theirs) != len(everybody[0][0]):
                raise ValueError(
                    f"ranks disagree: rank 0 has {len(everybody[0][0])} parameters and rank {rank} has {len(theirs)}"
                )
        return [merge(views) for views in zip(*(theirs for theirs, _, _ in everybody))]

    def _check_device(self, name: str, device: torch.device) -> None:
        """All parameters are on the device of the first."""
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"parameter '{name}' is on {device}: cpu and cuda are supported")
        if device.type == "cuda" and not _muster.cuda_available():
            raise ValueError(f"parameter '{name}' is on {device}: muster was built without CUDA, or sees no device")
        if self._device is None:
            self._device = device
        elif self._device != device:
            raise ValueError(
                f"parameter '{name}' is on {device}, others are on {self._device}: one optimizer, one device"
            )

    def _connect(self) -> Link:
        """Says where the engine computes, and how it talks. All ranks together."""
        if self._link is not None:
            return self._link
        device = self._device or torch.device("cpu")
        self._link = Link(self._process_group, device, self._timeout, self._backend)
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._options.device = _muster.Device.cuda(device.index, self._stream())
            plan = self._options.plan
            plan.cost = "h200"
            self._options.plan = plan
        return self._link

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    # A step.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step from the gradients as they are. Returns what the closure returns.

        A parameter that has moved (FSDP2 pads uneven shards before the first forward, say) is followed. A parameter
        without gradient on any rank sits out; where only some shards have none, theirs are zero. What is wrong with the
        input is a ValueError on every rank and changes nothing.

        On CUDA it returns when its work is enqueued: in the order of the current stream, which waits for it. What is
        wrong with this rank's input is raised at once; what another rank refused, and a CommError, by a later step, two
        steps later at most, or by ``synchronize``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_options.trace = timeline.recording()
        begin_ns = time.monotonic_ns()
        self._run(lambda gradients: self._engine.step(gradients, self._step_options))
        if self._step_options.trace:
            name = f"{type(self).__name__} step {self._engine.steps}"
            timeline.record(name, begin_ns, self._engine.trace())
        return loss

    def synchronize(self) -> None:
        """Waits for the steps under way on a device, and raises what they came to."""
        self._engine.synchronize()

    def grad_norm(self) -> float:
        """The norm of all gradients, the same bits for every layout. All ranks together."""
        return self._run(self._engine.grad_norm)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> float:
        """Scales gradients in place to at most this norm over all groups, meshes and ranks; returns what it was."""
        norm = self.grad_norm()
        scale = min(1.0, max_norm / (norm + 1e-6))
        if scale < 1.0:
            torch._foreach_mul_([local(p.grad) for p in self._tensors if p.grad is not None], scale)
        return norm

    def _run(self, work: Callable[[list[int]], Result]) -> Result:
        """Calls the engine with the addresses of this rank's gradients, in the order of the current stream."""
        error: str | None = None
        addresses: list[int] = []
        try:
            for index in self._gradients.moved():
                extra = self._extras[index]
                self._engine.move(index, self._gradients.weight(index), 0 if extra is None else extra.data_ptr())
            for out, group in zip(self._engine_groups, self.param_groups):
                fill_group(out, group)
            addresses = self._gradients.addresses()
        except (ValueError, TypeError) as caught:
            error, addresses = str(caught), []
        if self._cuda:
            self._engine.follow(self._stream())
        try:
            # The engine refuses a list that is too short, on every rank: nobody waits for this one.
            return work(addresses)
        except ValueError:
            # On a device the others hear of it later, one by one.
            everybody = [error] if self._cuda else gather(self._process_group, error)
            for rank, theirs in enumerate(everybody):
                if theirs is not None:
                    raise ValueError(theirs if theirs == error else f"rank {rank}: {theirs}") from None
            raise

    # State.

    def state_dict(self) -> dict[str, Any]:
        """As torch's: ``state`` by number of the parameter, ``param_groups``. All ranks together."""
        out = super().state_dict()
        state = export_state(self._engine, self._by_name)
        out["state"] = {i: state[name] for i, name in enumerate(self._names)}
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From any layout and number of ranks. What is missing starts from zero. All ranks together.

        ``muster.torch.import_torch`` and ``import_dion`` go on from what other optimizers saved.
        """
        for key in ("state", "param_groups"):
            if key not in state_dict:
                raise ValueError(f"state_dict: no {key!r}; was it made by an optimizer?")
        # As torch does it, by place in the groups: keys are numbers, or names in torch.distributed.checkpoint.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        # Without the states, which torch would cast to the dtypes of their parameters.
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for group, old in zip(self.param_groups, before):
            for key, value in old.items():
                group.setdefault(key, value)  # what another version, or another optimizer, does not know
        self._mark_state()
        names = dict(zip(keys, self._names))
        for key in state_dict["state"]:
            if key not in names:
                raise ValueError(f"state_dict: it has state of {key!r}, which is in none of its param_groups")
        given = {names[key]: entries for key, entries in state_dict["state"].items()}
        import_state(self._engine, given)

    def _mark_state(self) -> None:
        # torch.distributed.checkpoint makes a step with gradients of zero if it takes an optimizer for stateless.
        for parameter in self._tensors:
            self.state[parameter] = {}

    def save(self, directory: str | PathLike[str]) -> None:
        """Writes weights and state to a checkpoint of the engine (docs/checkpoints.md). All ranks together."""
        self._engine.save(str(directory))

    def load(self, directory: str | PathLike[str]) -> None:
        """Reads weights and state, from any layout and number of ranks. All ranks together."""
        self._engine.load(str(directory))

    # Reports.

    def plan(self) -> Plan:
        """Who orthogonalizes what, and what moves: a dict that prints as a table."""
        return Plan(json.loads(self._engine.plan_json()), self._engine.plan_text())

    def stats(self) -> dict[str, Any]:
        """Of the last step: bytes, messages, exchanges, and time by stage, on this rank."""
        return self._engine.stats()


class Muon(NorMuon):
    """Muon: as NorMuon, without its normalization."""

    _algorithm = "muon"


def _extra(tensor: torch.Tensor, form: _muster.WeightForm) -> torch.Tensor | None:
    if form == _muster.WeightForm.bf16_master:
        return tensor.detach().float()
    if form == _muster.WeightForm.bf16_mantissa:
        return torch.zeros(tensor.shape, dtype=torch.uint16, device=tensor.device)
    return None
