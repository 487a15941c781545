"""The optimizers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from .. import _muster
from . import timeline
from .build import Built
from .checkpoints import CheckpointedOptimizer
from .gradients import OtherDtype
from .group_keys import check_arguments
from .groups import DEFAULTS
from .hooks import quiet_hook_step
from .layout import local
from .monitoring import ParameterStats, scalars, write
from .options import NAMES, Options
from .overlap import CLIPPED, REGROUPED, SCALED, Overlap
from .plan import Plan
from .plan_options import PlanOptions
from .qk_clip import QKHeads
from .rank_local import with_remedies
from .ranks import TIMEOUT
from .weights import local_memory
from .rule import Rule
from .wrappers import check_caller, with_fewer_steps

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT
    from typing_extensions import Unpack

    from .groups import MoreOptions

Result = TypeVar("Result")


class NorMuon(CheckpointedOptimizer):
    """NorMuon for matrices, and AdamW or Lion for other groups, on one rank or many.

    All ranks of ``process_group`` make the same calls of the constructor, ``step``, ``save``, ``load`` and so on. The
    same gradients give the same bits under any sharding and on any number of ranks.

    The constructor plans nothing. The first use (``step``, ``grad_norm``, ``plan``, or a ``load_state_dict`` with
    state) reads the layouts of the tensors in ``param_groups``, and so does a step after these have changed: a
    framework may shard the model and replace tensors after the optimizer was made. From then on ``opt.state`` has
    tensors, which the engine updates in place; docs/reference/python.md has their names. One thread at a time uses an
    optimizer.

    Args:
        params: tensors, (name, tensor) pairs, or groups of either. ``muster.torch.param_groups(model)`` makes them; the
            keys of a group are those of ``muster.torch.groups.DEFAULTS``, and any other key is left alone. Parameters
            are float32 or bfloat16, all on the CPU or all on one CUDA device: plain tensors (alike on all ranks, as DDP
            keeps them) or DTensors. Those of a matrix group have the shape (output, input), or (stack, output, input);
            those of AdamW and Lion any shape. Gradients have the shape and layout of their parameters, in float32 or
            bfloat16. Tensors that are not contiguous cost a copy per step.
        lr: learning rate of the groups that give none; so are the next arguments. Default 0.02.
        weight_decay: decoupled: each step subtracts lr * weight_decay * weight. Default 0.
        momentum: decay rate of Muon's and NorMuon's momentum. Default 0.95.
        betas: decay rates of AdamW's and Lion's moments; the second is NorMuon's too. Default (0.9, 0.95).
        process_group: the ranks that share these parameters; with Gloo for the CPU. Default: the world, or this process
            alone if torch.distributed is not initialized.
        communicator: "nccl", "process_group" or "auto" (default): NCCL on CUDA if it can be used, else the process
            group.
        timeout: how long a rank waits for another before it raises CommError. Default 10 minutes.
        wire: "bf16" (default) or "f32": updates are rounded to it and travel in it; on one rank they are rounded too.
        momentum_dtype: "f32" (default), 4 bytes per element of Muon and NorMuon, or "bf16", 2 bytes, rounded in each
            step.
        bf16_weights: how bfloat16 weights are rounded: "nearest" (default), "stochastic", or exact by a "master"
            (float32 copy, 4 bytes per element) or a "mantissa" (16 more bits, 2 bytes) that this optimizer keeps.
        grad_sync: True: Muster averages gradients of plain tensors itself: train without DDP. Default False.
        replicate_state: True: every replica of a parameter keeps all of its state, so that one rank alone can save.
            False: each element's state is kept once, and ``state_dict`` is a call of all ranks. Default None: False
            with ``grad_sync``, else True.
        non_finite: policy for NaN and infinity in gradients: "ignore" (default), "error", "skip_step" or "zero". All but
            the first check every gradient before anything is changed.
        overlap: True: waves of the step start during backward, as their gradients come; see docs/howto/overlap.md.
            Default False.
        plan: how a step is planned, ``muster.torch.PlanOptions(...)``, which also says what the next three mean. They
            are short for ``plan=PlanOptions(strategy=..., waves=..., scratch_mib=...)``, and an error next to it.
        strategy: how the plan is made: "global" (default), or a schedule of another system, for comparison:
            "per_matrix", "chunked", "grouped", "megabatch", "routed" or "layerwise".
        waves: the number of waves of a step, with "global". Default 0: chosen by predicted time and ``scratch_mib``.
        scratch_mib: the most memory per rank, in MiB, for messages and intermediate results, besides weights, gradients
            and state; with "global". Less makes more waves. Default None: 1 GiB, or 1.5 times the least that the
            model needs if that least is more; ``plan()`` says which. A value that is too small is a ValueError with the least value.
        threads: threads per rank on the CPU. Default: torch.get_num_threads().
        graph: on CUDA, capture a step once and replay it. Default True; set False when debugging.
        seed: seed of stochastic rounding. Default 0.
        monitor_every: with ``monitor_every=N``, collect statistics per parameter in steps N, 2N, 3N, ... for
            ``parameter_stats`` and ``log_stats``. Default 0: never. The attribute may be changed between steps, on all
            ranks.
        qk_heads: by layer, which rows are the query and key rows of its heads, for ``qk_clip``. Default None.
        defaults: any other key of a group: ``scale="rms"``, ``coefficients="jordan"``, ``every=2``, ...

    Raises:
        TypeError: ``params`` is a module.
        ValueError: an argument is wrong on any rank; on all ranks.
        CommError: a rank did not arrive within ``timeout``.
    """

    _algorithm = "normuon"
    _rule: Rule | None = None

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
        replicate_state: bool | None = None,
        non_finite: str = "ignore",
        overlap: bool = False,
        plan: PlanOptions | None = None,
        strategy: str | None = None,
        waves: int | None = None,
        scratch_mib: int | None = None,
        threads: int | None = None,
        graph: bool = True,
        seed: int = 0,
        monitor_every: int = 0,
        qk_heads: Mapping[str, QKHeads] | None = None,
        **defaults: Unpack[MoreOptions],
    ) -> None:
        options = Options(
            communicator=communicator,
            timeout=timeout,
            wire=wire,
            momentum_dtype=momentum_dtype,
            bf16_weights=bf16_weights,
            grad_sync=grad_sync,
            replicate_state=replicate_state,
            non_finite=non_finite,
            overlap=overlap,
            plan=plan,
            strategy=strategy,
            waves=waves,
            scratch_mib=scratch_mib,
            threads=threads,
            graph=graph,
            seed=seed,
            monitor_every=monitor_every,
            qk_heads=qk_heads,
            rule=self._rule,
        )
        if isinstance(params, torch.nn.Module):
            name = type(self).__name__
            raise TypeError(f"{name}(model): give it groups: {name}(muster.torch.param_groups(model), lr=...)")
        self._start(options, process_group)
        with self.ranks.together("construction"):
            check_caller()
            options.check()
            check_arguments(defaults, NAMES)
            if isinstance(lr, torch.Tensor) and lr.numel() != 1:
                raise ValueError("Tensor lr must be 1-element")
            chosen: dict[str, Any] = {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "betas": betas,
                **defaults,
            }
            self._group_defaults = {**DEFAULTS, "algorithm": self._algorithm, **chosen}
            # Without betas: schedulers of torch that find them among the defaults cycle them and not the momentum.
            super().__init__(params, {key: self._group_defaults[key] for key in self._group_defaults if key != "betas"})
            self._declare_heads()
        if qk_heads is not None and len(set(self.ranks.gather("qk_heads", repr(qk_heads)))) > 1:
            raise ValueError("qk_heads: not the same on all ranks")
        self._begin()

    def _start(self, options: Options, process_group: dist.ProcessGroup | None) -> None:
        super()._start(options, process_group)
        if options.overlap:
            self._overlap = Overlap(self._take)
            self._step_supports_amp_scaling = True  # so that a GradScaler makes itself known

    # A step.

    profile_hook_step = staticmethod(quiet_hook_step)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step from the current gradients. All ranks together.

        The first step makes a plan, and so does one after tensors in the param groups were replaced, added or removed.
        A parameter whose memory has moved is followed: FSDP2, for example, pads uneven shards before the first forward.
        A parameter without gradient on any rank sits the step out; if only some shards have none, theirs count as zero.

        On CUDA it returns when its work is enqueued, in the order of the current stream. It raises at once if this
        rank's input is wrong. If another rank refused the step or died, a later step raises, at most two steps later,
        or ``synchronize``.

        Args:
            closure: computes the loss again, with gradients; called once, before the step.

        Returns:
            The closure's result, or None.

        Raises:
            ValueError: bad input on any rank; on all ranks, with nothing changed. With ``overlap=True`` the text says
                if waves had begun.
            CommError: a rank died, or did not arrive in time. Weights may be partly updated: load a checkpoint.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._use.call("step"):
            self._drop_consolidated()
            begin_ns = time.monotonic_ns()
            try:
                with self.ranks.together("the first step") if self._surroundings.unknown else nullcontext():
                    self._surroundings.check(self.param_groups)
                built = self._ready() if self._overlap is None else self._end_backward(self._overlap)
                built = self._run(built, lambda built, gradients: built.engine.step(gradients, built.step_options))[0]
            finally:
                self._clip.pending = False
                if self._overlap is not None:
                    self._end_step(self._overlap)
            if built.step_options.trace:
                timeline.record(f"{type(self).__name__} step {built.engine.steps}", begin_ns, built.engine.trace())
        return loss

    def _end_backward(self, overlap: Overlap) -> Built:
        """The engine for the rest of the step. The first backward gives the order in which waves are planned."""
        if getattr(self, "found_inf", None) is not None:
            self.found_inf = None
            overlap.error = overlap.error or SCALED
        if self._begun:
            assert self._built is not None
            if not self._is_current():
                overlap.error = overlap.error or REGROUPED
            return self._built
        self._watch()
        if overlap.order is None:
            everybody = self.ranks.gather("the first step", (overlap.reached(), overlap.error))
            if everybody[0][0] and not any(error for _, error in everybody):
                overlap.learned(everybody[0][0])
                return self._plan_again()
        return self._ready()

    def _end_step(self, overlap: Overlap) -> None:
        self._begun = False
        if self._built is not None:
            self._built.gradients.early_copies.clear()
        overlap.forget()

    @torch.no_grad()
    def _take(self, place: int, gradient: torch.Tensor | None) -> bool:
        """Gives a gradient to the engine during backward. If it is wrong, step() raises on all ranks."""
        built = self._built
        if built is None or (gradient is None and not self._begun) or built.numbers[place] < 0:
            return False
        try:
            with self._use.call("backward"):
                return self._take_up(built, built.numbers[place], gradient)
        except OtherDtype:
            return False  # step() makes another plan or raises
        except (ValueError, TypeError, RuntimeError) as caught:
            if not self._begun and self._overlap is not None:
                self._overlap.error = self._overlap.error or str(caught)
            return False

    def _take_up(self, built: Built, number: int, gradient: torch.Tensor | None) -> bool:
        if not self._begun and not self._is_current():
            return False  # step() makes another plan
        self._follow(built)
        if not self._begun:
            self._prepare(built)
        address = 0 if gradient is None else built.gradients.address(number, gradient)
        if not self._begun:
            built.step_options.trace = timeline.recording()
            built.engine.begin_step(built.step_options)
            self._begun = True
        built.engine.ready(number, address)
        return True

    def _prepare(self, built: Built) -> None:
        """Gives the engine the addresses of weights and state, and the hyperparameters."""
        self._adopt(built)
        for number in built.weights.moved():
            extra = built.extras[number]
            built.engine.move(number, built.weights.addresses[number], 0 if extra is None else extra.data_ptr())
        built.hyperparameters.update(self.param_groups)
        built.step_options.set_row_factors(*self._clip.address())
        if built.rule is not None:
            built.rule.groups = self.param_groups

    def _follow(self, built: Built) -> None:
        if self._connection.cuda:
            built.engine.follow(self._connection.stream())

    def qk_clip(self, max_logits: Mapping[str, Any], tau: float = 100.0) -> None:
        """QK-clip in the next step: rows of heads whose largest attention logit exceeds ``tau`` are scaled down.

        All ranks together, before ``step``, and with ``overlap=True`` before backward. One reduction combines the
        maxima of all layers and ranks. The step multiplies query and key rows by (tau / largest) ** 0.5, after its
        update and before the weights are rounded, also those of parameters that sit the step out; see
        docs/howto/qk-clip.md.

        Args:
            max_logits: by layer of ``qk_heads``, the largest logit of each of its heads on this rank, as a tensor or a
                list. A head that this rank does not compute has -inf, a layer is left out.
            tau: the largest logit that is left alone, above 0. Default 100.

        Raises:
            ValueError: an argument is wrong on any rank; on all ranks. On CUDA, maxima that are not finite refuse the
                step instead, so that no rank waits for the device.
        """
        with self._use.call("qk_clip"):
            error = "qk_clip: backward has begun the step; call it before backward" if self._begun else None
            first = next(p for group in self.param_groups for p in group["params"])
            self._clip.take(max_logits, tau, local_memory(first).device, error)

    def synchronize(self) -> None:
        """Waits for the steps enqueued on a CUDA device, and raises if one of them failed or was refused.

        Local: other ranks need not call it. On the CPU it does nothing.
        """
        with self._use.call("synchronize"):
            if self._built is not None:
                self._built.engine.synchronize()

    def grad_norm(self) -> float:
        """The norm of all gradients: the same bits for every layout. All ranks together; changes nothing."""
        with self._use.call("grad_norm"):
            return self._norm(None)

    def _norm(self, error: str | None) -> float:
        if self._overlap is not None:
            raise ValueError(CLIPPED)
        return self._run(self._ready(), lambda built, gradients: built.engine.grad_norm(gradients), error)[1]

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> float:
        """Scales gradients in place to a norm of at most ``max_norm`` over all groups, meshes and ranks.

        All ranks together; on CUDA it waits for the device.

        Args:
            max_norm: at least 0. A norm of NaN leaves the gradients as they are.

        Returns:
            The norm before.

        Raises:
            ValueError: ``max_norm`` is negative, a gradient is wrong, or ``overlap=True``; with nothing changed.
        """
        with self._use.call("clip_grad_norm"):
            norm = self._norm(None if max_norm >= 0 else f"max_norm {max_norm}: expected at least 0")
            scale = min(1.0, max_norm / (norm + 1e-6))
            tensors = self._ready().tensors
            if scale < 1.0 and (mine := [local(p.grad) for p in tensors if p.grad is not None]):
                torch._foreach_mul_(mine, scale)
            return norm

    def _run(
        self, built: Built, work: Callable[[Built, list[int]], Result], error: str | None = None
    ) -> tuple[Built, Result]:
        """Calls the engine with the addresses of this rank's gradients, in the order of the current stream.

        Returns the engine too: it is a new one if the dtype of gradients has changed.
        """
        built.step_options.trace = timeline.recording()
        every = self._options.monitor_every
        built.step_options.parameter_stats = every > 0 and (built.engine.steps + 1) % every == 0
        addresses: list[int] = []
        try:
            self._prepare(built)
            addresses = [] if error else built.gradients.addresses()
            if self._overlap is not None:
                self._overlap.check()
            built.weights.copy_in()
        except OtherDtype as other:
            if not self._begun:
                # The new plan reads the dtypes of the current gradients.
                return self._run(self._plan_again(), work, error)
            error, addresses = str(other), []
        except (ValueError, TypeError, RuntimeError) as caught:  # RuntimeError: out of memory, for example
            error, addresses = str(caught), []
        self._follow(built)
        try:
            # The engine refuses a list that is too short, on every rank: no rank waits for this one.
            out = work(built, addresses)
        except ValueError as refused:
            if built.rule is not None and refused is built.rule.error:
                raise  # other ranks raise CommError
            found = ValueError(error) if error else None
            if not self._connection.cuda:  # on CUDA other ranks learn of it later, each at another time
                self.ranks.raise_any("a refused step", found)
            remedies = with_remedies(refused, dict(zip(built.names, built.tensors)))
            raise (found or ValueError(remedies)) from None
        except _muster.CommError as lost:
            raise with_fewer_steps(lost) from None
        built.weights.copy_back()
        return built, out

    # Reports.

    def plan(self, *, verbose: bool = True) -> Plan:
        """The plan: which rank orthogonalizes which matrix, in how many waves, and what moves.

        All ranks together if no plan was made yet; it makes one, and raises errors about layouts as ``step`` would.

        Args:
            verbose: print its table on rank 0.

        Returns:
            The same values as ``muster plan --json``.
        """
        with self._use.call("plan"):
            engine = self._ready().engine
            plan = Plan(json.loads(engine.plan_json()), engine.plan_text())
        if verbose and self.ranks.rank == 0:
            print(plan)
        return plan

    def stats(self) -> dict[str, Any]:
        """Statistics of the last step on this rank: counts of bytes, messages and exchanges, and nanoseconds by stage."""
        with self._use.call("stats"):
            return self._ready().engine.stats()

    @property
    def monitor_every(self) -> int:
        """The interval of statistics per parameter, in steps; 0 for never. Set it on all ranks alike."""
        return self._options.monitor_every

    @monitor_every.setter
    def monitor_every(self, every: int) -> None:
        options = replace(self._options, monitor_every=every)
        options.check_monitoring()
        self._options = options

    def parameter_stats(self) -> dict[str, ParameterStats]:
        """Statistics of the last step by parameter, the same on every rank; empty if that step was not monitored.

        Local. ``monitor_every`` chooses the steps; docs/reference/python.md says what such a step costs.
        """
        with self._use.call("parameter_stats"):
            built = self._built
            if built is None or built.engine.stats()["skipped"]:
                return {}
            return {
                name: ParameterStats(*row[:3], row[3] if matrix else None)
                for name, matrix, row in zip(built.names, built.matrices, built.engine.parameter_stats())
            }

    def log_stats(self, writer: Any, step: int, *, prefix: str = "optimizer") -> dict[str, float]:
        """Writes the statistics of the last step, if it was monitored; call it after every step, on any rank.

        Args:
            writer: a TensorBoard ``SummaryWriter``, a W&B run or the module ``wandb``, or a function of (values, step).
            step: the number of the step in the log.
            prefix: the beginning of tags: "optimizer/update_rms/blocks.0.weight". Empty: no prefix.

        Returns:
            The values that were written, by tag. Empty if the step was not monitored.
        """
        stats = self.parameter_stats()
        if not stats or self._built is None:
            return {}
        values = scalars(stats, self._built.engine.stats()["grad_norm"], prefix)
        write(writer, values, step)
        return values


class Muon(NorMuon):
    """Muon for matrices, and AdamW or Lion for other groups: NorMuon without its normalization.

    Arguments and methods are those of NorMuon. A group may set ``algorithm="normuon"``.
    """

    _algorithm = "muon"
