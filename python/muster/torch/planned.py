"""An optimizer that plans on first use, and again when its param groups have changed."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from .. import _muster
from .build import Builder, Built, Connection
from .group_keys import check_keys
from .groups import check_shape
from .hyperparameters import JoinedMomentum, make_group
from .in_use import InUse
from .options import NAMES, Options
from .overlap import REGROUPED, Overlap, final_in_hooks
from .parameter_names import name_parameters
from .parameter_states import ParameterStates
from .parameters import Reader
from .qk_clip import QKClip, RowNumbers
from .rank_local import take_declaration
from .ranks import Ranks
from .state_tensors import State
from .wrappers import Surroundings, check_parameter


class PlannedOptimizer(torch.optim.Optimizer):
    """Keeps a plan that fits the param groups. Subclasses save, load and make the steps."""

    _group_defaults: dict[str, Any]

    def _start(self, options: Options, process_group: dist.ProcessGroup | None) -> None:
        """Sets the attributes that are neither copied nor pickled."""
        if process_group is None and dist.is_available() and dist.is_initialized():
            process_group = dist.group.WORLD
        self._options = options
        self.ranks = Ranks(process_group, options.timeout)
        self._use = InUse(self.ranks.size)
        self._surroundings = Surroundings()
        self._reader = Reader(self.ranks)
        self._joined = JoinedMomentum()
        self._connection = Connection(self.ranks, options)
        self._builder = Builder(options, self._connection, self._reader, self._joined)
        self._states = ParameterStates(options.first_seed)
        self._built: Built | None = None
        self._exported: dict[str, State] = {}  # state that the previous engine kept, for the next one
        self._overlap: Overlap | None = None
        self._begun = False  # backward has begun a step
        self._clip = QKClip(RowNumbers(None), self.ranks)
        self._made = False

    def _declare_heads(self) -> None:
        """Reads the option qk_heads. Raises ValueError."""
        numbers = RowNumbers(self._options.qk_heads)
        names, declared = name_parameters(self.param_groups), self._reader.declared
        shapes = {
            name: None if p in declared or is_lazy(p) else tuple(p.shape)
            for of_group, group in zip(names, self.param_groups)
            for name, p in zip(of_group, group["params"])
        }
        numbers.by_parameter(self.param_groups, names, shapes)
        self._clip = QKClip(numbers, self.ranks)

    # Groups.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. The next use makes a new plan and keeps the existing state. All ranks together.

        Args:
            param_group: a dict with ``params`` and any keys of ``muster.torch.groups.DEFAULTS``.

        Raises:
            ValueError: a key or a parameter is wrong on any rank; on all ranks, with no group added.
        """
        before, declared = len(self.param_groups), dict(self._reader.declared)
        with self._use.call("add_param_group"):
            try:
                # torch's constructor adds groups too, and is itself a call of all ranks.
                with self.ranks.together("add_param_group") if self._made else nullcontext():
                    self._add(param_group)
            except Exception:
                del self.param_groups[before:]
                self._reader.declared = declared
                raise
            if self._made:
                self._watch()

    def _add(self, param_group: dict[str, Any]) -> None:
        check_keys(param_group, NAMES)
        number = len(self.param_groups)
        super().add_param_group({**self._group_defaults, **param_group})
        added = self.param_groups[-1]
        declared = take_declaration(added)
        if declared is not None:
            self._reader.declared.update(dict.fromkeys(added["params"], declared))
        self._joined.join(added)
        names = name_parameters(self.param_groups)[-1]
        make_group(_muster.Group(), number, added, names)
        for name, parameter in zip(names, added["params"]):
            check_parameter(name, parameter)
            if not is_lazy(parameter):
                check_shape(name, tuple(parameter.shape), added)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The process group whose ranks share the parameters; None if this process is alone."""
        return self.ranks.group

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in the order of the groups."""
        return [name for names in name_parameters(self.param_groups, self._states.names) for name in names]

    # Plans.

    def _ready(self) -> Built:
        """The engine for the current groups. All ranks together, if the groups have changed."""
        built = self._built
        if built is not None and built.is_current(self.param_groups):
            return built
        return self._plan_again()

    @torch.no_grad()
    def _plan_again(self, keep: bool = True) -> Built:
        """Makes a plan for the current groups. With ``keep`` the previous state goes on; it must be complete."""
        if self._begun:
            raise ValueError(REGROUPED)
        for group in self.param_groups:
            check_keys(group, NAMES)
            for key, value in self._group_defaults.items():
                group.setdefault(key, value)
            if type(group["params"]) is not list:
                group["params"] = list(group["params"])
        names = name_parameters(self.param_groups, self._states.names)
        self._follow_declarations([name for of_group in names for name in of_group])
        before = self._built
        if before is not None and keep:
            before.engine.synchronize()  # raises if a step broke off: weights may be partly updated
            self._exported = before.state_of_engine()
        before = self._built = None  # frees its memory
        self._watch()
        order = [] if self._overlap is None else self._overlap.order or []
        self._built = self._builder.build(self.param_groups, names, self._states, self.state, self._exported, order)
        self._exported = {}
        self._use.process = os.getpid()
        return self._built

    def _follow_declarations(self, names: list[str]) -> None:
        """A tensor that replaced another of the same name inherits its declaration."""
        flat = [p for group in self.param_groups for p in group["params"]]
        gone = {name: p for p, name in self._states.names.items() if p in self._reader.declared and p not in set(flat)}
        for name, parameter in zip(names, flat):
            if name in gone and parameter not in self._states.names:
                self._reader.declared.setdefault(parameter, self._reader.declared[gone[name]])

    def _watch(self) -> None:
        """With overlap: puts hooks on the current parameters."""
        if self._overlap is None:
            return
        flat = [p for group in self.param_groups for p in group["params"]]
        if self._overlap.watches(flat):
            return
        declared, ranks = self._reader.declared, self.ranks.size
        final = [self._options.grad_sync or final_in_hooks(p, declared.get(p), ranks) for p in flat]
        self._overlap.watch(self.names, flat, final)
