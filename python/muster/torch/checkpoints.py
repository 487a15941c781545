"""Saving and loading an optimizer: torch's state_dict, checkpoints of the engine, copies."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from os import PathLike
from typing import Any

import torch

from .. import _muster
from .build import Built
from .errors import comm_error
from .loading import Given, check_entries, check_form, match, take_over_groups, unless_it_fails
from .parameter_states import first_value
from .planned import PlannedOptimizer
from .state import empty_like_engine, import_state
from .state_tensors import UNEVEN, State, fill, to_pickle

_NOT_ALONE = (
    "state_dict() is a call of all ranks where replicas do not keep all state. For a state_dict() of one rank give "
    "replicate_state=True, or call opt.consolidate_state_dict() on all ranks first"
)


class CheckpointedOptimizer(PlannedOptimizer):
    """An optimizer that saves and loads its state. Subclasses make the steps."""

    def _start(self, *args: Any) -> None:
        super()._start(*args)
        self._warned = False
        self._consolidated: dict[str, State] | None = None
        self._consolidated_on: int | None = None  # a rank; None: nothing is consolidated

    # torch's state_dict.

    def state_dict(self) -> dict[str, Any]:
        """As in torch: ``state`` by number of the parameter, and ``param_groups``.

        Its tensors are those of ``opt.state``: local, without copies or messages. Before the first use ``state`` is
        empty. With ``grad_sync`` or ``replicate_state=False`` replicas do not keep all state, and the rest is gathered:
        then call it on all ranks together, or call ``consolidate_state_dict`` on all ranks first.
        """
        with self._use.call("state_dict"):
            self._joined.join_all(self.param_groups)
            if self._built is None:
                return super().state_dict()
            built = self._whole("state_dict")
            self._warn_of_names()
            gathered = self._gathered(built)
            if not gathered:
                return _copy_dicts(super().state_dict())
            kept = self.state
            self.state = defaultdict(dict, kept)  # hooks see the gathered state too
            try:
                for name, entries in gathered.items():
                    parameter = built.kept_by_engine[name]
                    self.state[parameter] = {**kept[parameter], **entries}
                return _copy_dicts(super().state_dict())
            finally:
                self.state = kept

    def _warn_of_names(self) -> None:
        """Warns once that checkpoints by name cannot tell the parts of rank-local parameters apart."""
        if self._warned or self.ranks.size == 1:
            return
        for name, parameter in zip(self.names, (p for group in self.param_groups for p in group["params"])):
            declared = self._reader.declared.get(parameter)
            if declared is not None and declared.rank_local is not None:
                self._warned = True
                warnings.warn(
                    f"muster: '{name}' is rank-local: each rank has its own part of it under the same name, and "
                    "torch.distributed.checkpoint keeps one tensor per name. Use opt.save() and opt.load(), or a file "
                    "per rank",
                    stacklevel=4,
                )
                return

    def _whole(self, what: str) -> Built:
        """Waits for the engine's steps, and returns it with a state that can be saved."""
        if self._begun:
            raise ValueError(f"{what}: step {int(self._states.counts[0]) + 1} is under way: step() ends it")
        built = self._built  # the same tensors may have been regrouped since
        if built is None or not built.has_same_tensors(self.param_groups):
            built = self._ready()
        built.engine.synchronize()
        self._adopt(built)
        if built.uneven is not None and what != "save":
            parameter = built.tensors[built.names.index(built.uneven)]
            placements = getattr(parameter, "placements", ())
            raise ValueError(f"parameter '{built.uneven}': {UNEVEN.format(tuple(parameter.shape), placements)}")
        return built

    def _gathered(self, built: Built) -> dict[str, State]:
        """Whole tensors of the state that only the engine keeps, by parameter name."""
        if self._consolidated is not None:
            return self._consolidated
        if self._consolidated_on is not None and built.kept_by_engine:
            raise RuntimeError(
                f"state_dict: rank {self._consolidated_on} has it: consolidate_state_dict(to={self._consolidated_on}) "
                "gathered it there until the next step or load"
            )
        try:
            return built.state_of_engine()
        except _muster.CommError as error:
            raise comm_error(f"{error}. {_NOT_ALONE}", error.code) from None

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gathers state on rank ``to``, so that ``state_dict()`` needs no other rank until the next step or load.

        All ranks together, before one of them saves, as in torch's ZeroRedundancyOptimizer. By default every rank keeps
        all state of its parameters, and the call does nothing.

        Args:
            to: the rank that saves. ``state_dict()`` on the others is a RuntimeError until the next step or load.
        """
        with self._use.call("consolidate_state_dict"):
            if not 0 <= to < self.ranks.size:
                raise ValueError(f"consolidate_state_dict: rank {to}, expected 0 to {self.ranks.size - 1}")
            if self._built is None:
                return
            self._drop_consolidated()
            built = self._whole("consolidate_state_dict")
            gathered = built.state_of_engine()
            if gathered:
                self._consolidated_on = to
                self._consolidated = gathered if self.ranks.rank == to else None

    def _drop_consolidated(self) -> None:
        self._consolidated = self._consolidated_on = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies state into the tensors of ``opt.state``, which keep their dtype, device and memory.

        Call it on all ranks, after the model's weights are loaded: the first load makes the plan, and DTensors of
        another layout are redistributed.

        Parameters are matched by name if both sides have names, else by place in the groups. Missing entries start from
        zero, with one warning that lists them. Groups keep the keys that a plan was made for (``algorithm``,
        ``lr_mul``, how matrices are cut) and take over the rest. ``muster.torch.import_torch`` and ``import_dion`` load
        checkpoints of other optimizers.

        Args:
            state_dict: made by ``state_dict()``. Tensors may be whole, or DTensors in any layout.

        Raises:
            ValueError: no entry fits, or one is wrong. Nothing has been changed. Other ranks may not raise.
        """
        with self._use.call("load_state_dict"):
            state_dict = state_dict.copy()
            for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
                result = pre_hook(self, state_dict)
                state_dict = state_dict if result is None else result
            self._load(state_dict)
            for post_hook in self._optimizer_load_state_dict_post_hooks.values():
                post_hook(self)

    @torch.no_grad()
    def _load(self, state_dict: dict[str, Any], warn: bool = True) -> None:
        check_form(self, state_dict)
        given = match(self.param_groups, state_dict)
        if self._begun:
            raise ValueError(f"load_state_dict: step {int(self._states.counts[0]) + 1} is under way: step() ends it")
        built = None
        if self._built is not None or not given.empty:
            built = self._built if self._is_current() else self._plan_again(keep=False)
        with unless_it_fails(self):
            take_over_groups(self, state_dict["param_groups"])
            self._joined.join_all(self.param_groups)
            if built is not None:
                self._load_entries(built, given, warn)
        self.state.update(given.others)
        self._drop_consolidated()

    def _is_current(self) -> bool:
        return self._built is not None and self._built.is_current(self.param_groups)

    def _load_entries(self, built: Built, given: Given, warn: bool) -> None:
        states = self._states
        of_engine = empty_like_engine(built.engine, built.kept_by_engine)
        names = [states.names[tensor] for tensor in built.flat]
        if of_engine:
            with self.ranks.together("load_state_dict"):
                changes = check_entries(given, names, built.flat, states.owned, of_engine, warn)
            import_state(built.engine, changes.of_engine, built.kept_by_engine)
        else:
            changes = check_entries(given, names, built.flat, states.owned, of_engine, warn)
        for value, into in changes.copies:
            fill(value, into)
        for parameter, entry in changes.restarts:
            first_value(parameter, entry, states.owned[parameter][entry])
        states.restore(self.state, changes.counts)
        built.engine.restored()

    def _adopt(self, built: Built) -> None:
        """Takes over the changes that a user made to ``opt.state`` since the last call."""
        states = self._states
        if states.untouched(self.state):
            return
        removed = states.adopt(self.state, lambda p, entry: first_value(p, entry, states.owned[p][entry]))
        gone = {name: p for name, p in built.kept_by_engine.items() if any(p is r for r in removed)}
        if gone:
            import_state(built.engine, {}, gone)

    # Checkpoints of the engine.

    def save(self, directory: str | PathLike[str]) -> None:
        """Writes weights and state to a checkpoint of the engine. All ranks together.

        It loads on any number of ranks and any layout: docs/howto/checkpoints-and-resharding.md. With one rank another
        thread may call it: it waits for the step in progress.

        Args:
            directory: a path on a file system that all ranks share. A checkpoint in it is replaced when the new one is
                complete, and is as it was if this call raises or the process dies.

        Raises:
            ValueError: a rank cannot write there; on all ranks, with its number and the reason.
            ResourceError: a rank's machine failed, with a full disk for example; likewise. Training may go on.
            CommError: a rank was lost.
        """
        path = os.fsdecode(os.fspath(directory))
        with self._use.call("save"):
            built = self._whole("save")
            built.weights.copy_in()
            built.engine.save(path)

    def load(self, directory: str | PathLike[str]) -> None:
        """Reads weights and state of a checkpoint from any layout and number of ranks. All ranks together.

        After a step that broke off, it makes the optimizer usable again.

        Args:
            directory: what ``save`` wrote.

        Raises:
            ValueError: the checkpoint is damaged or of another model; on all ranks, with nothing changed.
            ResourceError: a rank's machine failed before anything was changed; on all ranks.
            Error: a file changed after it was checked. The state may be partly loaded: load again.
            CommError: a rank was lost.
        """
        path = os.fsdecode(os.fspath(directory))
        with self._use.call("load"):
            built = self._built if self._is_current() else self._plan_again(keep=False)
            assert built is not None
            built.weights.copy_in()
            built.engine.load(path)
            built.weights.copy_back()
            self._drop_consolidated()

    # Copies.

    def __getstate__(self) -> dict[str, Any]:
        if self.ranks.size > 1:
            raise TypeError(
                f"{type(self).__name__} on {self.ranks.size} ranks is neither copied nor pickled: take its state_dict()"
            )
        with self._use.call("copy"):
            self._joined.join_all(self.param_groups)
            if self._built is not None:
                self._whole("save")
            return {
                **super().__getstate__(),
                "state": to_pickle(self.state),
                "_options": self._options,
                "_group_defaults": self._group_defaults,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state.get("_options")
        if options is not None:  # a copy; it plans on first use
            self._start(options, None)
        super().__setstate__(state)
        if options is not None:
            self._declare_heads()
            self._begin()

    def _begin(self) -> None:
        """Called when the constructor has added the groups."""
        self._made = True
        self._watch()


def _copy_dicts(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Copies the dicts, so that changing them does not change ``opt.state``; tensors are the same."""
    state = state_dict.get("state", {})  # a hook may have replaced values
    copies = {key: dict(value) if isinstance(value, dict) else value for key, value in state.items()}
    return {**state_dict, "state": copies}
