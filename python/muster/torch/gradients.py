"""Where gradients and weights are, at every step: as little Python a parameter as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor

from .layout import local

_data_ptr, _is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous


class Gradients:
    """Finds the gradients of parameters, and checks what torch lets through.

    ``addresses()`` gives one a parameter, 0 for no gradient. Memory stays alive as long as torch keeps it: the engine's
    work is in the order of the caller's stream, and what is freed there is reused behind it. Copies that had to be made
    (of gradients that are not contiguous) are in ``copies`` until the next call.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.Tensor]) -> None:
        self._names = names
        # With the layout of a DTensor, which in FSDP2 is its gradient's too, the same object.
        self._parameters: list[tuple[int, Any, torch.dtype, Any]] = [
            (i, p, p.dtype, p._spec if isinstance(p, DTensor) else None) for i, p in enumerate(parameters)
        ]
        self._plain = None if any(isinstance(p, DTensor) for p in parameters) else list(parameters)
        self._dtypes = [p.dtype for p in parameters]
        mine = [local(p.detach()) for p in parameters]
        self._were = [(m.device, tuple(m.shape)) for m in mine]
        self._weights = [m.data_ptr() for m in mine]
        self.copies: list[torch.Tensor] = []
        self.early_copies: list[torch.Tensor] = []

    def moved(self) -> list[int]:
        """Numbers of parameters whose memory is elsewhere now (``p.data = ...``, say), once each time."""
        if self._plain is not None:
            weights = list(map(_data_ptr, self._plain))
        else:
            weights = [p.data_ptr() if s is None else p._local_tensor.data_ptr() for _, p, _, s in self._parameters]
        if weights == self._weights:
            return []
        out = [i for i, (now, before) in enumerate(zip(weights, self._weights)) if now != before]
        for i in out:
            self._check_moved(i)
        self._weights = weights
        return out

    def weight(self, index: int) -> int:
        """The address of this rank's shard."""
        return self._weights[index]

    def addresses(self) -> list[int]:
        """Of this rank's gradients. Raises ValueError naming the parameter."""
        self.copies = []
        if self._plain is not None:
            found = self._all_plain([p.grad for p in self._plain])
            if found is not None:
                return found
        out = []
        strided = torch.strided
        for index, parameter, dtype, spec in self._parameters:
            grad = parameter.grad
            if grad is None:
                out.append(0)
                continue
            if spec is None and type(grad) is torch.Tensor:
                mine = grad
            elif spec is not None and getattr(grad, "_spec", None) is spec:
                mine = grad._local_tensor
            else:
                mine = self._look(index, parameter, grad)
            if mine.dtype is not dtype or mine.layout is not strided:
                self._refuse(index, parameter, mine)
            if not mine.is_contiguous():
                mine = mine.detach().contiguous()
                self.copies.append(mine)
            out.append(mine.data_ptr())
        return out

    def _all_plain(self, grads: list[torch.Tensor | None]) -> list[int] | None:
        """Addresses, if all are there and as usual: no line of Python for each. None: somebody has to look."""
        if {*map(type, grads)} != {torch.Tensor}:
            return None
        there = cast("list[torch.Tensor]", grads)
        try:
            if [g.dtype for g in there] == self._dtypes and all(map(_is_contiguous, there)):
                return list(map(_data_ptr, there))
        except RuntimeError:  # a sparse one
            pass
        return None

    def address(self, index: int, grad: torch.Tensor) -> int:
        """Of a gradient before the others are there. A copy is in ``early_copies`` until somebody clears it."""
        _, parameter, dtype, _ = self._parameters[index]
        mine = self._look(index, parameter, grad)
        if mine.dtype is not dtype or mine.layout is not torch.strided:
            self._refuse(index, parameter, mine)
        if not mine.is_contiguous():
            mine = mine.contiguous()
            self.early_copies.append(mine)
        return mine.data_ptr()

    def _look(self, index: int, parameter: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Those that are not laid out by the very object that lays out the parameter."""
        name = self._names[index]
        if isinstance(grad, DTensor) != isinstance(parameter, DTensor):
            raise ValueError(f"parameter '{name}': only one of it and its gradient is a DTensor")
        if not isinstance(grad, DTensor) or not isinstance(parameter, DTensor):
            return grad
        if grad.placements != parameter.placements or grad.device_mesh != parameter.device_mesh:
            raise ValueError(
                f"parameter '{name}': its gradient is laid out as {grad.placements}, it as {parameter.placements}; "
                "redistribute the gradient"
            )
        return local(grad)

    def _refuse(self, index: int, parameter: torch.Tensor, mine: torch.Tensor) -> None:
        if mine.layout != torch.strided:
            raise ValueError(f"parameter '{self._names[index]}': its gradient is sparse")
        raise ValueError(f"parameter '{self._names[index]}': its gradient is {mine.dtype}, it is {parameter.dtype}")

    def _check_moved(self, index: int) -> None:
        _, parameter, dtype, _ = self._parameters[index]
        now = local(parameter.detach())
        device, shape = self._were[index]
        for what, is_now, was in (
            ("dtype", now.dtype, dtype),
            ("device", now.device, device),
            ("shape", tuple(now.shape), shape),
        ):
            if is_now != was:
                raise ValueError(
                    f"parameter '{self._names[index]}': its {what} is {is_now}, it was {was} when the optimizer was made"
                )
        if not now.is_contiguous():
            raise ValueError(f"parameter '{self._names[index]}': it moved, and is not contiguous")
