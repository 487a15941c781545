"""Steps that begin during backward: hooks give the engine each gradient when it is complete."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .rank_local import Declared

_TWICE = (
    "overlap=True: the gradient of '{}' came again after it was used: one backward per step, without accumulation"
    " (and checkpoint(use_reentrant=False))"
)
_CHANGED = (
    "overlap=True: the gradient of '{}' was changed after backward; clipping, loss scaling and accumulation need all"
    " gradients before the first is used"
)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
SCALED = "overlap=True: not with GradScaler: whether gradients overflowed is known after backward; waves start before"
SCREENED = (
    "overlap=True: not with non_finite='{}', which looks at all gradients before anything is changed, and waves start"
    " before that"
)
MONITORED = (
    "overlap=True: not with monitor_every={}: gradient norms need all gradients as they were, and waves start before"
    " that"
)
REGROUPED = "overlap=True: param groups were changed after backward had begun the step; change them before backward"
CLIPPED = "overlap=True: not with clipping: it needs the norm of all gradients, and waves start before that"


class Overlap:
    """Follows the backward passes of one optimizer.

    The first backward is only watched: in which order it reaches parameters, and how often each. In later ones a
    gradient that has come as often is given to ``take``. From then on it and its parameter belong to the step.

    ``take`` gets the number of a parameter and its gradient, and returns True if the engine uses it. A gradient of None
    means that backward reached another parameter and waves that have begun may go on. On CUDA the gradient is complete
    in the order of the current stream. Gradients are kept until the step is over.
    """

    def __init__(self, take: Callable[[int, torch.Tensor | None], bool]) -> None:
        self._take = weakref.WeakMethod(take)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._names: Sequence[str] = ()
        self._parameters: Sequence[torch.Tensor] = ()
        self._final: Sequence[bool] = ()
        self._numbers: dict[torch.Tensor, int] = {}
        self._expected: list[int] = []
        self._side: torch.cuda.Stream | None = None
        self.order: list[int] | None = None  # numbers of parameters; None: not known yet
        self.forget()

    def watches(self, parameters: Sequence[torch.Tensor]) -> bool:
        """True if these are the very parameters that it watches."""
        return len(parameters) == len(self._parameters) and all(map(operator.is_, parameters, self._parameters))

    def watch(self, names: Sequence[str], parameters: Sequence[torch.Tensor], final: Sequence[bool]) -> None:
        """Starts over with these parameters.

        ``final`` is True for a gradient that is complete when hooks are called; others are in ``step`` or in a bucket.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.order = None
        self._names, self._parameters, self._final = names, parameters, final
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self.forget()
        mine = weakref.ref(self)  # parameters outlive optimizers
        for number, parameter in enumerate(parameters):
            if parameter.requires_grad:
                came = functools.partial(_came, mine, number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(came))  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Resets everything that belongs to one step."""
        self.error: str | None = None
        self._reached: list[int] = []
        self._times = [0] * len(self._names)
        self._seen: dict[int, tuple[torch.Tensor, int]] = {}  # gradients that were used, with their versions
        self._copies: dict[int, torch.Tensor] = {}  # gradients in buckets
        self._buckets: list[tuple[dist.Work, torch.futures.Future[Any], list[torch.Tensor], list[torch.Tensor]]] = []
        self._in_buckets: set[torch.Tensor] = set()
        self._backward_over = False
        self._watched = False

    def learned(self, order: list[int]) -> None:
        """Sets the order, the same on all ranks. How often a gradient comes is counted by each rank."""
        self.order = order
        self._expected = [max(1, times) for times in self._times]

    def reached(self) -> list[int]:
        """Parameters in the order in which their gradients were complete; those that wait for ``step`` come last."""
        last = {number: place for place, number in enumerate(self._reached)}

        def order(number: int) -> tuple[bool, int]:
            early = self._final[number] or self._parameters[number] in self._in_buckets
            return not early, last[number]

        return sorted(last, key=order)

    def check(self) -> None:
        """Raises ValueError if gradients have changed since they were used."""
        if self.error is not None:
            raise ValueError(self.error)
        for number, (gradient, version) in self._seen.items():
            if self._parameters[number].grad is not gradient or gradient._version != version:
                raise ValueError(_CHANGED.format(self._names[number]))
        self._check_copies()

    def _check_copies(self) -> None:
        """Compares the bits of gradients with their buckets, if those are other memory. Waits for the device once."""
        numbers, differ = [], []
        for number, used in self._copies.items():
            now = self._parameters[number].grad
            if now is None:
                raise ValueError(_CHANGED.format(self._names[number]))
            if now.data_ptr() != used.data_ptr():
                bits = _BITS[now.element_size()]
                numbers.append(number)
                differ.append((now.view(bits) != used.view(bits)).any())
        if not differ:
            return
        changed = torch.stack(differ).nonzero()
        if len(changed) > 0:
            raise ValueError(_CHANGED.format(self._names[numbers[int(changed[0])]]))

    def came(self, number: int) -> None:
        """Backward has added to this gradient."""
        if not self._watched:
            self._watched = True
            over = functools.partial(_is_over, weakref.ref(self))
            torch.autograd.Variable._execution_engine.queue_callback(over)
        self._times[number] += 1
        again = self.order is not None and self._times[number] > self._expected[number]
        if self._backward_over or again:
            self.error = self.error or _TWICE.format(self._names[number])
            return
        self._reached.append(number)
        if self._final[number] and (self.order is None or self._times[number] == self._expected[number]):
            gradient = self._parameters[number].grad
            assert gradient is not None
            self._seen[number] = (gradient, gradient._version)
            self._use(number, gradient)
        else:
            self._go_on(number)
        self._look_into_buckets()

    def bucket(self, work: dist.Work, parameters: list[torch.Tensor], views: list[torch.Tensor]) -> None:
        """Gradients that are complete once the work is done."""
        self._buckets.append((work, work.get_future(), parameters, views))
        self._in_buckets.update(parameters)
        self._look_into_buckets()

    def _look_into_buckets(self) -> None:
        while self._buckets and self._buckets[0][1].done() and self.error is None:
            work, _, parameters, views = self._buckets.pop(0)
            with self._behind(work, views[0].device):
                for parameter, view in zip(parameters, views):
                    number = self._numbers.get(parameter)
                    # For a parameter that backward did not reach the bucket has zeros; step() looks for its gradient.
                    if number is not None and self._times[number] > 0 and self._use(number, view):
                        self._copies[number] = view

    @contextlib.contextmanager
    def _behind(self, work: dist.Work, device: torch.device) -> Iterator[None]:
        """On a device, makes a second stream wait for the work, so that backward's own stream does not."""
        if device.type == "cpu":
            yield
            return
        self._side = self._side or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._side):
            work.wait()
            yield

    def _go_on(self, number: int) -> None:
        take = self._take()
        if self.order is not None and take is not None:
            take(number, None)

    def _use(self, number: int, gradient: torch.Tensor) -> bool:
        take = self._take()
        if self.order is None or take is None or not take(number, gradient):
            return False
        # Weights may change now. With a new version autograd raises if this backward still needs the old ones.
        torch.autograd.graph.increment_version(self._parameters[number])
        return True


def _came(overlap: weakref.ref[Overlap], number: int, parameter: torch.Tensor) -> None:
    alive = overlap()
    if alive is not None and parameter.grad is not None:
        alive.came(number)


def _is_over(overlap: weakref.ref[Overlap]) -> None:
    alive = overlap()
    if alive is not None:
        alive._backward_over = True


def final_in_hooks(parameter: torch.Tensor, declared: Declared | None, ranks: int) -> bool:
    """True if a gradient is complete when hooks see it, without ``grad_sync``.

    FSDP2 calls hooks after its reduce-scatter and all-reduce. Replicas that the layout does not show (plain tensors,
    tensors on a slice of a mesh) are averaged later, by DDP for example.
    """
    if ranks == 1:
        return True
    declared = declared or Declared()
    meshes = [parameter.device_mesh if isinstance(parameter, DTensor) else declared.mesh, declared.rank_local]
    told: int = math.prod(mesh.size() for mesh in meshes if mesh is not None)
    return told == ranks


def check_device(name: str, parameter: torch.Tensor, device: torch.device) -> None:
    """Raises ValueError if hooks are called before the gradient is in memory."""
    if isinstance(parameter, DTensor) and parameter.device_mesh.device_type != device.type:
        raise ValueError(f"overlap=True: parameter '{name}' is offloaded: its gradient is still on its way in hooks")


__all__ = ["CLIPPED", "REGROUPED", "SCALED", "SCREENED", "Overlap", "check_device", "final_in_hooks"]
