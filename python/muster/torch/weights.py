"""The addresses of weights in every step: their own memory, or a contiguous copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .layout import local

_data_ptr = torch.Tensor.data_ptr
NOT_CONTIGUOUS = (
    "overlap=True: parameter '{}' is not contiguous, strides {} of shape {}: its weights would have to be copied"
    " before and after each step"
)


def local_memory(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's shard, without autograd."""
    return local(parameter.detach())


class Weights:
    """The addresses that an engine updates.

    Parameters that are not contiguous have a contiguous copy: ``copy_in`` before the engine reads or writes weights,
    ``copy_back`` after it wrote them.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.Tensor], overlap: bool) -> None:
        self._names, self._overlap = names, overlap
        self._parameters: Sequence[Any] = parameters
        self._plain = not any(isinstance(p, DTensor) for p in parameters)
        mine = [local_memory(p) for p in parameters]
        self._were = [(m.dtype, m.device, tuple(m.shape)) for m in mine]
        self._seen = [m.data_ptr() for m in mine]
        self._copies: dict[int, torch.Tensor] = {}
        self.addresses = list(self._seen)
        for index, memory in enumerate(mine):
            self._place(index, memory)

    def _place(self, index: int, memory: torch.Tensor) -> None:
        self._copies.pop(index, None)
        if not memory.is_contiguous():
            if self._overlap:
                name = self._names[index]
                raise ValueError(NOT_CONTIGUOUS.format(name, memory.stride(), tuple(memory.shape)))
            memory = self._copies[index] = memory.contiguous()
        self.addresses[index] = memory.data_ptr()

    def moved(self) -> list[int]:
        """Numbers of parameters whose memory has moved since the last call, as ``p.data = ...`` does."""
        if self._plain:
            seen = list(map(_data_ptr, self._parameters))
        else:
            seen = [
                p._local_tensor.data_ptr() if isinstance(p, DTensor) else p.data_ptr() for p in self._parameters
            ]
        if seen == self._seen:
            return []
        out = [i for i, (now, before) in enumerate(zip(seen, self._seen)) if now != before]
        for i in out:
            self._check(i)
        for i in out:
            self._place(i, local_memory(self._parameters[i]))
        self._seen = seen
        return out

    def _check(self, index: int) -> None:
        now = local_memory(self._parameters[index])
        for what, is_now, was in zip(
            ("dtype", "device", "shape"), (now.dtype, now.device, tuple(now.shape)), self._were[index]
        ):
            if is_now != was:
                raise ValueError(
                    f"parameter '{self._names[index]}': its {what} is {is_now}, it was {was} when the optimizer was"
                    " first used; replace the parameter in its param group, or make another optimizer"
                )

    def copy_in(self) -> None:
        for index, copy in self._copies.items():
            with torch.no_grad():
                copy.copy_(local_memory(self._parameters[index]))

    def copy_back(self) -> None:
        for index, copy in self._copies.items():
            with torch.no_grad():
                local_memory(self._parameters[index]).copy_(copy)
            torch.autograd.graph.increment_version(self._parameters[index])


def check_shared_memory(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError naming two parameters that share memory: both would update it."""
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size() if t.is_contiguous() else t.data_ptr() + 1, name)
        for name, t in zip(names, tensors)
        if t.numel()
    )
    for (_, end, first), (begin, _, second) in zip(spans, spans[1:]):
        if begin < end:
            raise ValueError(f"parameters '{first}' and '{second}' share memory; give one of them")
