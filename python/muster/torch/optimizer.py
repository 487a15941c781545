"""The optimizers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from .. import _muster
from . import timeline
from .communicator import Link
from .gradients import Gradients
from .groups import DEFAULTS, bare_name, check_keys, fill_group, plain_values
from .hooks import quiet_hook_step
from .layout import TensorLayout, agree, local
from .loading import take_over, unless_it_fails
from .overlap import CLIPPED, SCALED, SCREENED, Overlap, check_device, final_in_hooks
from .parameters import Reader, extra_memory, make_parameters
from .plan import Plan
from .rank_local import take_declaration, with_remedies
from .ranks import TIMEOUT, Ranks, check_timeout
from .state import check_overlap, export_state, import_state

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT
    from typing_extensions import Unpack

    from .groups import MoreOptions

_WEIGHT_FORMS = {
    "nearest": _muster.WeightForm.bf16,
    "stochastic": _muster.WeightForm.bf16_stochastic,
    "master": _muster.WeightForm.bf16_master,
    "mantissa": _muster.WeightForm.bf16_mantissa,
}
Result = TypeVar("Result")


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
        overlap: waves of the step start while backward runs, as their gradients come; see docs/torch.md. Default False.
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
        timeout: timedelta = TIMEOUT,
        wire: str = "bf16",
        momentum_dtype: str = "f32",
        bf16_weights: str = "nearest",
        grad_sync: bool = False,
        non_finite: str = "ignore",
        overlap: bool = False,
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
        self.ranks = Ranks(process_group, timeout)
        self._link: Link | None = None
        self._backend = communicator
        self._reader = Reader(self.ranks)
        self._cuda = False
        with self.ranks.together("construction"):
            check_timeout(timeout)
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
            self._overlap = None
            self._begun = self._state_given = False
            if overlap:
                if non_finite != "ignore":
                    raise ValueError(SCREENED.format(non_finite))
                self._options.overlap = True
                self._overlap = Overlap(self._take)
                self._step_supports_amp_scaling = True  # so that a GradScaler makes itself known
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
            super().__init__(params, chosen)
        self._build()

    # Construction.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; with it a new plan is made, and what there is of state is kept. All ranks together."""
        built = hasattr(self, "_engine")  # torch's constructor adds group after group
        before, declared = len(self.param_groups), dict(self._reader.declared)
        try:
            with self.ranks.together("add_param_group") if built else nullcontext():
                check_keys(param_group)
                super().add_param_group(dict(param_group))
                said = take_declaration(self.param_groups[-1])
                if said is not None:
                    self._reader.declared.update(dict.fromkeys(self.param_groups[-1]["params"], said))
            if not built:
                return
            state = export_state(self._engine, self._by_name)
            if self._overlap is not None:
                self._overlap.order = None
                self._set_order([])
            self._build()
        except Exception:
            del self.param_groups[before:]
            self._reader.declared = declared
            raise
        import_state(self._engine, state)

    def _build(self) -> None:
        """Plans for the groups as they are now."""
        names = self._name_parameters()
        tensors = [p for group in self.param_groups for p in group["params"]]
        layouts: list[TensorLayout] = []
        error = None
        try:
            layouts = [self._reader.read(name, p) for name, p in zip(names, tensors)]
            if self._overlap is not None:
                for name, p in zip(names, tensors):
                    check_device(name, p, local(p).device)
            check_overlap(names, [local(p) for p in tensors])
            self._options.groups = self._make_groups(names)
        except (ValueError, TypeError) as caught:
            error = str(caught)
        kind = None if self._reader.device is None else self._reader.device.type
        layouts = agree(self.ranks, layouts, kind, error)
        owners = [group for group in self.param_groups for _ in group["params"]]
        parameters, meshes = make_parameters(self.ranks, layouts, tensors, owners)
        link = self._connect()

        problem = _muster.Problem()
        problem.model, problem.ranks = "torch", self.ranks.size
        problem.meshes, problem.parameters = meshes, parameters
        problem.wire, problem.grad_sync = self._wire, self._grad_sync
        forms = [_muster.WeightForm.f32 if p.dtype == torch.float32 else self._bf16_form for p in tensors]
        extras = [extra_memory(local(p), form) for p, form in zip(tensors, forms)]
        numbers = [number for number, group in enumerate(self.param_groups) for _ in group["params"]]
        memory = [
            _muster.ParameterMemory(local(p).data_ptr(), form, number, 0 if extra is None else extra.data_ptr())
            for p, form, number, extra in zip(tensors, forms, numbers, extras)
        ]
        try:
            self._engine = _muster.Optimizer(problem, self._options, link.communicator, memory)
        except ValueError as refused:
            raise type(refused)(with_remedies(str(refused), dict(zip(names, tensors)))) from None
        self._names, self._tensors, self._extras = names, tensors, extras
        self._by_name = dict(zip(names, tensors))
        self._gradients = Gradients(names, tensors)
        self._mark_state()
        self._engine_groups = [self._engine.group(g) for g in range(len(self.param_groups))]
        self._filled: list[tuple[Any, ...] | None] = [None] * len(self.param_groups)
        if self._overlap is not None and self._overlap.order is None:
            declared, ranks = self._reader.declared, self.ranks.size
            final = [self._grad_sync or final_in_hooks(p, declared.get(p), ranks) for p in tensors]
            self._overlap.watch(names, tensors, final)

    def _make_groups(self, names: list[str]) -> list[_muster.Group]:
        groups = [_muster.Group() for _ in self.param_groups]
        for index, out in enumerate(groups):
            self._fill(out, index, names)
        return groups

    def _fill(self, out: _muster.Group, index: int, names: list[str]) -> None:
        group = self.param_groups[index]
        try:
            fill_group(out, group)
            out.validate()
        except (ValueError, TypeError) as bad:
            first = sum(len(g["params"]) for g in self.param_groups[:index])
            of = f" (of '{names[first]}')" if group["params"] else ""
            raise ValueError(f"param group {index}{of}: {bad}") from None

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Whose ranks share the parameters; None: this process alone."""
        return self.ranks.group

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

    def _connect(self) -> Link:
        """Says where the engine computes, and how it talks. All ranks together."""
        if self._link is not None:
            return self._link
        device = self._reader.device or torch.device("cpu")
        self._link = Link(self.ranks, device, self._backend, self._overlap is not None)
        self._cuda = device.type == "cuda"
        self._device_index = device.index
        if self._cuda:
            self._options.device = _muster.Device.cuda(device.index, self._stream())
            plan = self._options.plan
            plan.cost = "h200"
            self._options.plan = plan
        return self._link

    def _stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self._device_index)

    def _follow(self) -> None:
        if self._cuda:
            self._engine.follow(self._stream())

    # A step.

    profile_hook_step = staticmethod(quiet_hook_step)

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
        if self._overlap is not None:
            self._end_with_overlap(self._overlap)
        else:
            self._run(lambda gradients: self._engine.step(gradients, self._step_options))
        if self._step_options.trace:
            name = f"{type(self).__name__} step {self._engine.steps}"
            timeline.record(name, begin_ns, self._engine.trace())
        return loss

    def _end_with_overlap(self, overlap: Overlap) -> None:
        """What backward has not done. Before the first step waves are planned anew, in the order of backward."""
        if getattr(self, "found_inf", None) is not None:
            self.found_inf = None
            overlap.error = overlap.error or SCALED
        if overlap.order is None:
            everybody = self.ranks.gather("the first step", (overlap.reached(), overlap.error))
            if everybody[0][0] and not any(error for _, error in everybody):
                self._plan_in(overlap, everybody[0][0])
        try:
            self._run(lambda gradients: self._engine.step(gradients, self._step_options))
        finally:
            self._end_step(overlap)

    def _end_step(self, overlap: Overlap) -> None:
        self._begun = False
        self._gradients.early_copies.clear()
        overlap.forget()

    @torch.no_grad()
    def _plan_in(self, overlap: Overlap, order: list[int]) -> None:
        state = None
        if self._state_given or self._engine.steps > 0:
            state = export_state(self._engine, self._by_name)
        self._engine_groups = []
        del self._engine  # its memory
        overlap.learned(order)
        self._set_order(order)
        self._build()
        if state is not None:
            import_state(self._engine, state)

    def _set_order(self, order: list[int]) -> None:
        plan = self._options.plan
        plan.order = order
        self._options.plan = plan

    @torch.no_grad()
    def _take(self, number: int, gradient: torch.Tensor | None) -> bool:
        """Gives a gradient to the engine in backward. What is wrong with it, step() finds, and refuses on all ranks."""
        if gradient is None and not self._begun:
            return False
        try:
            self._follow()
            if not self._begun:
                self._prepare()
                self._step_options.trace = timeline.recording()
                self._engine.begin_step(self._step_options)
                self._begun = True
            address = 0 if gradient is None else self._gradients.address(number, gradient)
        except (ValueError, TypeError, RuntimeError) as caught:
            if not self._begun and self._overlap is not None:
                self._overlap.error = self._overlap.error or str(caught)
            return False
        self._engine.ready(number, address)
        return True

    def _prepare(self) -> None:
        """Tells the engine where weights are, and the hyperparameters."""
        for index in self._gradients.moved():
            extra = self._extras[index]
            self._engine.move(index, self._gradients.weight(index), 0 if extra is None else extra.data_ptr())
        for index, (out, group) in enumerate(zip(self._engine_groups, self.param_groups)):
            values = plain_values(group)
            if values is None or values != self._filled[index]:
                self._filled[index] = None  # it may stop in the middle
                self._fill(out, index, self._names)
                self._filled[index] = values

    def synchronize(self) -> None:
        """Waits for the steps under way on a device, and raises what they came to."""
        self._engine.synchronize()

    def grad_norm(self) -> float:
        """The norm of all gradients, the same bits for every layout. All ranks together."""
        return self._norm(None)

    def _norm(self, error: str | None) -> float:
        if self._overlap is not None:
            raise ValueError(CLIPPED)
        return self._run(self._engine.grad_norm, error)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> float:
        """Scales gradients in place to at most this norm over all groups, meshes and ranks; returns what it was."""
        norm = self._norm(None if max_norm >= 0 else f"max_norm {max_norm}: expected at least 0")
        scale = min(1.0, max_norm / (norm + 1e-6))
        if scale < 1.0 and (mine := [local(p.grad) for p in self._tensors if p.grad is not None]):
            torch._foreach_mul_(mine, scale)
        return norm

    def _run(self, work: Callable[[list[int]], Result], error: str | None = None) -> Result:
        """Calls the engine with the addresses of this rank's gradients, in the order of the current stream."""
        addresses: list[int] = []
        try:
            self._prepare()
            addresses = [] if error else self._gradients.addresses()
            if self._overlap is not None:
                self._overlap.check()
        except (ValueError, TypeError, RuntimeError) as caught:  # out of memory, say
            error, addresses = str(caught), []
        self._follow()
        try:
            # The engine refuses a list that is too short, on every rank: nobody waits for this one.
            return work(addresses)
        except ValueError as refused:
            found = ValueError(error) if error else None
            if not self._cuda:  # there others hear of it later, one by one
                self.ranks.raise_any("a refused step", found)
            raise (found or refused) from None

    # State.

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{type(self).__name__} is neither copied nor pickled: take its state_dict()")

    def state_dict(self) -> dict[str, Any]:
        """As torch's: ``state`` by number of the parameter, ``param_groups``. All ranks together."""
        out = super().state_dict()
        state = export_state(self._engine, self._by_name)
        out["state"] = {i: state[name] for i, name in enumerate(self._names)}
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From any layout and number of ranks. What is missing starts from zero. All ranks together.

        Groups keep what a plan was made for (``algorithm``, ``lr_mul``, how matrices are cut) and take over the rest.
        ``muster.torch.import_torch`` and ``import_dion`` go on from what other optimizers saved.
        """
        with unless_it_fails(self):
            given = take_over(self, self._names, self.ranks, state_dict)
            self._mark_state()
            import_state(self._engine, given)
        self._take_up_state()

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
        self._take_up_state()

    def _take_up_state(self) -> None:
        self._state_given = True
        if self._overlap is not None:  # whatever had begun is over
            self._end_step(self._overlap)

    # Reports.

    def plan(self, *, verbose: bool = True) -> Plan:
        """Who orthogonalizes what, and what moves: prints it as a table on rank 0, and returns it as a dict."""
        plan = Plan(json.loads(self._engine.plan_json()), self._engine.plan_text())
        if verbose and self.ranks.rank == 0:
            print(plan)
        return plan

    def stats(self) -> dict[str, Any]:
        """Of the last step: bytes, messages, exchanges, and time by stage, on this rank."""
        return self._engine.stats()


class Muon(NorMuon):
    """Muon: as NorMuon, without its normalization."""

    _algorithm = "muon"
