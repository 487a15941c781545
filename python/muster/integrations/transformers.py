"""Muon and NorMuon in the Trainer of Hugging Face transformers.

    from muster.integrations.transformers import NorMuonFactory, from_arguments

    args = TrainingArguments(learning_rate=0.02, weight_decay=0.1, ...)
    trainer = Trainer(model, args, optimizer_cls_and_kwargs=from_arguments(args, adamw_lr=3e-4), ...)

Trainer gives an optimizer *class* two groups, with and without weight decay, in which matrices, embeddings and norms
are mixed. A *factory* gets the model, so that it can make the right groups.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn
from transformers import Trainer, TrainerCallback  # type: ignore[import-not-found,import-untyped,unused-ignore]

from ..torch import Muon, NorMuon, param_groups
from ..torch.group_keys import check_arguments

if TYPE_CHECKING:
    from transformers import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )

__all__ = ["ConsolidateState", "LogStats", "MuonFactory", "NorMuonFactory", "from_arguments"]

_DEFAULT_RATE = 5e-5  # of TrainingArguments: AdamW's


class NorMuonFactory:
    """Makes NorMuon for a Trainer: ``optimizer_cls_and_kwargs=(NorMuonFactory, {"lr": 0.02, "adamw_lr": 3e-4})``.

    Trainer passes nothing of its TrainingArguments to a factory: ``from_arguments`` does.
    """

    _optimizer: ClassVar[type[NorMuon]] = NorMuon

    def __call__(
        self,
        model: nn.Module,
        *,
        lr: float | None = None,
        adamw_lr: float = 3e-4,
        adamw_weight_decay: float = 0.0,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        include: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        exclude: str | Sequence[str] = (),
        verbose: bool = True,
        **options: Any,
    ) -> NorMuon:
        """The optimizer of a model's parameters that require gradients.

        Args:
            model: as the Trainer gives it.
            lr: learning rate of the matrices. Required.
            adamw_lr, adamw_weight_decay, adamw_betas, adamw_eps: of embeddings, heads, gains and biases.
            include: patterns of names of parameters for the matrix optimizer, as in ``muster.torch.param_groups``.
            exclude: patterns of names of parameters for AdamW.
            verbose: print on rank 0 which parameters go where.
            options: any other argument of ``muster.torch.NorMuon``: ``weight_decay``, ``momentum``, ``scale``, ...
        """
        _check_options(type(self), options)
        if lr is None:
            raise ValueError(
                f"{type(self).__name__}: give lr, the learning rate of the matrices. Trainer passes no learning_rate "
                "to a factory; muster.integrations.transformers.from_arguments(args) does"
            )
        groups = param_groups(
            model,
            include=include,
            exclude=exclude,
            adamw_lr=adamw_lr,
            adamw_weight_decay=adamw_weight_decay,
            adamw_betas=adamw_betas,
            verbose=verbose,
        )
        for group in groups:
            if group.get("algorithm") == "adamw":
                group["eps"] = adamw_eps
        return self._optimizer(groups, lr, **options)


class MuonFactory(NorMuonFactory):
    """Makes Muon for a Trainer, as NorMuonFactory makes NorMuon."""

    _optimizer: ClassVar[type[NorMuon]] = Muon


def from_arguments(
    args: TrainingArguments, factory: type[NorMuonFactory] = NorMuonFactory, **options: Any
) -> tuple[type[NorMuonFactory], dict[str, Any]]:
    """``optimizer_cls_and_kwargs`` of a Trainer, with the values of its TrainingArguments.

    ``learning_rate`` and ``weight_decay`` are those of the matrices; ``adam_beta1``, ``adam_beta2`` and
    ``adam_epsilon`` those of the AdamW group. Its learning rate and weight decay are ``adamw_lr`` (default 3e-4) and
    ``adamw_weight_decay`` (default 0). The Trainer's scheduler scales the rates of all groups alike.

    Args:
        args: of the same Trainer.
        factory: ``NorMuonFactory`` or ``MuonFactory``.
        options: arguments of the factory; they win over ``args``.

    Raises:
        TypeError: ``factory`` is not a factory.
        ValueError: neither the factory nor its optimizer has an argument of this name.
    """
    if not (isinstance(factory, type) and issubclass(factory, NorMuonFactory)):
        name = getattr(factory, "__name__", type(factory).__name__)
        right = "MuonFactory" if name in ("Muon", "MuonFactory") else "NorMuonFactory"
        raise TypeError(
            f"from_arguments(args, {name}): give the class {right} of muster.integrations.transformers: Trainer gives "
            "a factory the model, and an optimizer only groups that mix matrices and norms"
        )
    _check_options(factory, options)
    if args.learning_rate == _DEFAULT_RATE and "lr" not in options:
        warnings.warn(
            f"muster: learning_rate is {_DEFAULT_RATE}, the default of TrainingArguments for AdamW, and is used for "
            "matrices, whose usual rate is about 0.02: set TrainingArguments(learning_rate=...)",
            stacklevel=2,
        )
    chosen = {
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "adamw_betas": (args.adam_beta1, args.adam_beta2),
        "adamw_eps": args.adam_epsilon,
    }
    return factory, {**chosen, **options}


def _check_options(factory: type[NorMuonFactory], options: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that neither the factory nor the optimizer has, with the nearest that one has."""
    known = {*_arguments(factory.__call__, "model"), *_arguments(factory._optimizer.__init__, "params")}
    check_arguments({key: value for key, value in options.items() if key not in known}, known)


def _arguments(function: Any, first: str) -> set[str]:
    """Names of a method's arguments that may be given by keyword."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return {name for name, parameter in parameters.items() if parameter.kind in kinds} - {"self", first}


class ConsolidateState(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Needed with ``replicate_state=False`` under DDP: gathers state on rank 0 before rank 0 saves it alone.

    Trainer decides on all ranks whether it saves, after ``on_step_end``, ``on_epoch_end`` and ``on_evaluate``. Give it
    after callbacks of your own that set ``control.should_save``.
    """

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Consolidates, if this step is saved."""
        if control.should_save:
            _consolidate(kwargs["optimizer"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Consolidates, if this epoch is saved."""
        if control.should_save:
            _consolidate(kwargs["optimizer"])

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Consolidates if the best model is saved; whether this one is the best is decided later."""
        if args.save_strategy == "best":
            _consolidate(kwargs["optimizer"])


class LogStats(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Writes the optimizer's statistics after each monitored step: ``from_arguments(args, monitor_every=100)``.

    ``trainer.add_callback(LogStats(trainer))`` writes to the Trainer's own log, and so to everything in ``report_to``.

    Args:
        writer: the Trainer, or what ``NorMuon.log_stats`` takes: a TensorBoard ``SummaryWriter``, a W&B run, or a
            function of (values, step). All but the Trainer are called on the main process only.
        prefix: what tags begin with.
    """

    def __init__(self, writer: Any, *, prefix: str = "optimizer") -> None:
        self._writer, self._prefix = writer, prefix

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuses other optimizers, and warns if no step is monitored."""
        optimizer = _unwrapped(kwargs["optimizer"])
        if optimizer is None:
            raise TypeError(f"LogStats: {type(kwargs['optimizer']).__name__} is no optimizer of muster.torch")
        if optimizer.monitor_every == 0:
            warnings.warn(
                "muster: LogStats has nothing to write while monitor_every is 0: give from_arguments(args, "
                "monitor_every=100), or set optimizer.monitor_every on all ranks",
                stacklevel=2,
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Writes, unless a GradScaler skipped the step."""
        wrapped = kwargs["optimizer"]
        optimizer = _unwrapped(wrapped)
        if optimizer is None or getattr(wrapped, "step_was_skipped", False):
            return
        if isinstance(self._writer, Trainer):
            # On all ranks, as the Trainer logs. Its log() would cancel the log of this step that is still due.
            should_log = control.should_log
            optimizer.log_stats(lambda values, _: self._writer.log(values), state.global_step, prefix=self._prefix)
            control.should_log = should_log
        elif state.is_world_process_zero:
            optimizer.log_stats(self._writer, state.global_step, prefix=self._prefix)


def _consolidate(optimizer: Any) -> None:
    ours = _unwrapped(optimizer)
    if ours is not None:
        ours.consolidate_state_dict()


def _unwrapped(optimizer: Any) -> NorMuon | None:
    """The optimizer that accelerate wraps. None if it is not one of this package."""
    while optimizer is not None and not isinstance(optimizer, NorMuon):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer
