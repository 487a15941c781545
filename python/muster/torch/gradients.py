"""Finds the addresses of gradients in every step, with as little Python per parameter as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor

from .layout import local

_data_ptr, _is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
#: Dtypes of gradients that the engine reads.
DTYPES = (torch.float32, torch.bfloat16)


class OtherDtype(Exception):
    """A gradient has more precision than the plan was made for; the caller makes another plan."""


class Gradients:
    """Finds the gradients of parameters, and checks for errors that torch does not report.

    ``addresses()`` returns one address per parameter, 0 for no gradient. Torch keeps the memory alive: the engine works
    in the order of the caller's stream, and memory that is freed there is reused only by later work. Copies (of
    gradients that are not contiguous, have another dtype, or are negated) are in ``copies`` until the next call.

    ``dtypes`` are those that the engine reads. With ``fixed`` any other dtype is converted to them.
    """

    def __init__(
        self, names: Sequence[str], parameters: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype], fixed: bool
    ) -> None:
        self._names, self._fixed = names, fixed
        # With the layout of a DTensor. In FSDP2 its gradient has the same object.
        self._parameters: list[tuple[int, Any, torch.dtype, Any]] = [
            (i, p, dtype, p._spec if isinstance(p, DTensor) else None)
            for i, (p, dtype) in enumerate(zip(parameters, dtypes))
        ]
        self._plain = None if any(isinstance(p, DTensor) for p in parameters) else list(parameters)
        self._dtypes = list(dtypes)
        self.negated: set[int] = set()  # numbers of parameters that step along their gradients
        self.copies: list[torch.Tensor] = []
        self.early_copies: list[torch.Tensor] = []

    def addresses(self) -> list[int]:
        """The addresses of this rank's gradients. Raises OtherDtype, or ValueError that names the parameter."""
        self.copies = []
        if self._plain is not None and not self.negated:
            found = self._all_plain([p.grad for p in self._plain])
            if found is not None:
                return found
        out = []
        strided, negated = torch.strided, self.negated
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
            if mine.layout is not strided:
                raise ValueError(f"parameter '{self._names[index]}': its gradient is sparse")
            if mine.dtype is not dtype or index in negated or not mine.is_contiguous():
                mine = self._copy(index, mine)
                self.copies.append(mine)
            address = mine.data_ptr()
            if address == 0 and mine.numel():
                self._refuse_freed(index)
            out.append(address)
        return out

    def _all_plain(self, grads: list[torch.Tensor | None]) -> list[int] | None:
        """The addresses if all gradients are plain tensors, without Python code per gradient. None: look at each."""
        if {*map(type, grads)} != {torch.Tensor}:
            return None
        there = cast("list[torch.Tensor]", grads)
        try:
            if [g.dtype for g in there] == self._dtypes and all(map(_is_contiguous, there)):
                found = list(map(_data_ptr, there))
                return None if 0 in found else found
        except RuntimeError:  # a sparse one
            pass
        return None

    def address(self, index: int, grad: torch.Tensor) -> int:
        """The address of one gradient during backward. A copy is in ``early_copies`` until the step is over."""
        _, parameter, dtype, _ = self._parameters[index]
        mine = self._look(index, parameter, grad)
        if mine.layout is not torch.strided:
            raise ValueError(f"parameter '{self._names[index]}': its gradient is sparse")
        if mine.dtype is not dtype or index in self.negated or not mine.is_contiguous():
            mine = self._copy(index, mine)
            self.early_copies.append(mine)
        address = mine.data_ptr()
        if address == 0 and mine.numel():
            self._refuse_freed(index)
        return address

    @torch.no_grad()
    def _copy(self, index: int, mine: torch.Tensor) -> torch.Tensor:
        """A copy as the engine reads it: in its dtype, contiguous, and negated if the group maximizes."""
        _, _, dtype, _ = self._parameters[index]
        if mine.untyped_storage().size() == 0 and mine.numel():
            self._refuse_freed(index)
        if mine.dtype is not dtype:
            if mine.dtype not in DTYPES:
                raise ValueError(
                    f"parameter '{self._names[index]}': its gradient is {mine.dtype};"
                    " float32 and bfloat16 are supported"
                )
            if dtype is torch.bfloat16 and not self._fixed:
                name = self._names[index]
                raise OtherDtype(f"parameter '{name}': its gradient is {mine.dtype}, it was {dtype} before")
        out = mine.detach().to(dtype).contiguous()
        return torch.neg(out) if index in self.negated else out

    def _look(self, index: int, parameter: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """The local part of a gradient whose layout is not the same object as the parameter's."""
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

    def _refuse_freed(self, index: int) -> None:
        raise ValueError(
            f"parameter '{self._names[index]}': the memory of its gradient was freed; set the gradient to None instead"
        )


def planned_dtype(parameter: torch.Tensor) -> torch.dtype | None:
    """The dtype of the gradient that a parameter has, or is declared to get. None: not known yet."""
    if parameter.grad is not None:
        return parameter.grad.dtype
    declared: torch.dtype | None = getattr(parameter, "grad_dtype", parameter.dtype)  # torch 2.10 and later
    return declared if declared is not parameter.dtype else None
