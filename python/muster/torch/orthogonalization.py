"""Orthogonalization as a function and a custom op of torch, for optimizers that are not of this package."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _muster
from .errors import shown
from .groups import coefficient_set, coefficient_steps

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda", "meta")


def orthogonalize(
    x: torch.Tensor, coefficients: str | Sequence[Sequence[float]] = "polar_express", *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The orthogonal factor of every matrix of ``x``: U V^T of its singular value decomposition U S V^T, nearly.

    The singular values of the result are near 1, as near as the coefficients bring them. A matrix with NaN or infinity
    gives NaN, zeros give zeros. The bits of a result depend on its matrix, the options and the kind of device alone: not
    on the batch, strides, threads or streams.

    Args:
        x: matrices of shape (..., rows, columns) in float32, bfloat16 or float16, whole on one CPU or CUDA device, with
            any strides. The CPU computes in float32 and rounds once to the dtype of x. CUDA multiplies 16-bit operands
            into float32 sums (bfloat16, or float16 where one side is at least twice the other) and rounds to the dtype
            of x. float16 is converted to float32 and back, so only the result is rounded.
        coefficients: a name, as in a param group, or one (a, b, c) per iteration: X becomes
            a X + (b A + c A^2) X, with A the Gram matrix of X.
        out: a tensor of the shape, dtype and device of x that receives the result, with any strides; x itself or
            overlapping memory is allowed.

    Returns:
        ``out``, or a contiguous tensor of the shape, dtype and device of x.

    There is no derivative: x that requires gradients is a ValueError unless gradients are off. On CUDA it runs on the
    current stream, which may be capturing a graph; call it once before. ``torch.compile(fullgraph=True)`` takes it as
    one operation.
    """
    name, steps = _plain(coefficients)
    _check(x)
    if out is None:
        return torch.ops.muster.orthogonalize(x, name, steps)  # type: ignore[no-any-return]
    _check_out(x, out)
    torch.ops.muster.orthogonalize_out(x, name, steps, out)
    return out


def _plain(coefficients: str | Sequence[Sequence[float]]) -> tuple[str, list[float]]:
    """As an operation of torch takes them: a name, or the numbers of all steps. torch.compile traces this."""
    if isinstance(coefficients, str):
        return coefficients, []
    return "", [number for step in coefficient_steps(coefficients) for number in step]


def _engine_coefficients(name: str, steps: Sequence[float]) -> _muster.Coefficients:
    out = coefficient_set(name or [steps[i : i + 3] for i in range(0, len(steps), 3)])
    out.validate()
    return out


def _check(x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"x {shown(x)}: expected a tensor")
    if x.dtype not in _DTYPES:
        raise ValueError(f"x of {x.dtype}: expected torch.float32, torch.bfloat16 or torch.float16")
    if x.dim() < 2:
        raise ValueError(f"x of shape {tuple(x.shape)}: expected at least 2 dimensions, (..., rows, columns)")
    if x.layout != torch.strided:
        raise ValueError(f"x of layout {x.layout}: expected torch.strided")
    if x.device.type not in _DEVICES:
        raise ValueError(f"x on {x.device}: expected cpu or cuda")
    _check_gradient("x", x)


def _check_gradient(name: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires_grad=True: orthogonalize has no derivative; call it under torch.no_grad(), or give"
            f" {name}.detach()"
        )


def _check_out(x: torch.Tensor, out: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise ValueError(f"out {shown(out)}: expected a tensor")
    if out.shape != x.shape:
        raise ValueError(f"out of shape {tuple(out.shape)}: expected that of x, {tuple(x.shape)}")
    if out.dtype != x.dtype:
        raise ValueError(f"out of {out.dtype}: expected that of x, {x.dtype}")
    if out.device != x.device:
        raise ValueError(f"out on {out.device}: expected that of x, {x.device}")
    _check_gradient("out", out)


def _device(x: torch.Tensor) -> _muster.Device:
    if x.device.type == "cpu":
        return _muster.Device.cpu()
    return _muster.Device.cuda(x.device.index, torch.cuda.current_stream(x.device).cuda_stream)


def _compute(x: torch.Tensor, name: str, steps: Sequence[float], out: torch.Tensor, in_place: bool) -> None:
    """``in_place``: the kernels may work in ``out``, which is not memory of ``x``."""
    coefficients = _engine_coefficients(name, steps)
    if x.numel() == 0:
        return
    half = x.dtype == torch.float16  # no dtype of the kernels' matrices
    work = out
    if half or not in_place or not out.is_contiguous():
        work = torch.empty(x.shape, dtype=torch.float32 if half else x.dtype, device=x.device)
    work.copy_(x)
    rows, columns = x.shape[-2:]
    dtype = _muster.Dtype.bf16 if work.dtype == torch.bfloat16 else _muster.Dtype.f32
    call = _muster.Orthogonalization(
        count=x.numel() // (rows * columns),
        rows=rows,
        columns=columns,
        dtype=dtype,
        coefficients=coefficients,
        device=_device(x),
        threads=torch.get_num_threads(),
    )
    workspace = torch.empty(call.workspace_bytes, dtype=torch.uint8, device=x.device)
    call.run(work.data_ptr(), workspace.data_ptr())
    if work is not out:
        out.copy_(work)


def _share_memory(x: torch.Tensor, out: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()


@torch.library.custom_op(
    "muster::orthogonalize", mutates_args=(), schema="(Tensor x, str coefficients, float[] steps) -> Tensor"
)
def _orthogonalize(x: torch.Tensor, coefficients: str, steps: Sequence[float]) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _compute(x, coefficients, steps, out, in_place=True)
    return out


@_orthogonalize.register_fake
def _(x: torch.Tensor, coefficients: str, steps: Sequence[float]) -> torch.Tensor:
    _engine_coefficients(coefficients, steps)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op(
    "muster::orthogonalize_out",
    mutates_args=("out",),
    schema="(Tensor x, str coefficients, float[] steps, Tensor(a!) out) -> ()",
)
def _orthogonalize_out(x: torch.Tensor, coefficients: str, steps: Sequence[float], out: torch.Tensor) -> None:
    _compute(x, coefficients, steps, out, in_place=not _share_memory(x, out))


@_orthogonalize_out.register_fake
def _(x: torch.Tensor, coefficients: str, steps: Sequence[float], out: torch.Tensor) -> None:
    _engine_coefficients(coefficients, steps)
