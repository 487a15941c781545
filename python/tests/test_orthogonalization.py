"""muster.torch.orthogonalize: values, bits, out=, and how torch sees it as an operation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dion_reference import POLAR_EXPRESS
from torch._dynamo.testing import CompileCounter

import muster
import muster.torch
from muster import _muster

orthogonalize = muster.torch.orthogonalize
QUINTIC = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037)]
SHAPES = [(1, 1), (1, 9), (9, 1), (6, 20), (20, 6), (33, 32), (3, 24, 17), (2, 3, 5, 8), (1, 1, 40, 40)]
HALVES = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit in the last place of 1


def _values(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _reference(x: torch.Tensor, steps: Any, safety: float = 1) -> torch.Tensor:
    """Newton-Schulz in float64."""
    x = x.double() / (safety * x.double().norm(dim=(-2, -1), keepdim=True))
    for a, b, c in steps:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


# Errors of f32, 6e-8, grow with the slope of the polynomials at 0, here at most 990; on a single singular value, which
# is 1 from the start, with that of the iterations after.
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("steps", ["polar_express", QUINTIC, [QUINTIC[0]]], ids=["name", "list", "one step"])
def test_values_are_those_of_float64(shape: tuple[int, ...], steps: Any) -> None:
    x = _values(shape)
    before = x.clone()
    result = orthogonalize(x, steps)
    expected = _reference(x, *((POLAR_EXPRESS, 1.02) if isinstance(steps, str) else (steps,)))
    assert (result.double() - expected).abs().max() < 2e-4
    assert (result.shape, result.dtype, result.is_contiguous()) == (x.shape, x.dtype, True)
    assert torch.equal(x, before)


def test_capped_sets_cap() -> None:
    """Three singular values are 100 times the others, which three iterations alone would leave small."""
    x = _values((100, 300))
    x[:3] *= 100
    capped3 = [(7.859615, -22.699111, 16.713835), (3.333444, -2.414054, 0.473357), (2.36781, -1.69214, 0.403417)]

    def smallest(coefficients: Any) -> float:
        return torch.linalg.svdvals(orthogonalize(x, coefficients).double()).min().item()

    assert smallest("capped3") > 0.83  # minimax within 0.16
    assert smallest(capped3) < 0.5


@pytest.mark.parametrize("name", [str(name) for name in _muster.coefficient_names()])
def test_takes_every_set_by_name(name: str) -> None:
    x = _values((12, 30))
    u, _, v = torch.linalg.svd(x.double(), full_matrices=False)
    # "jordan" and others bring singular values to 0.7 to 1.2 only; "aol4" changes the polar factor a little.
    assert (orthogonalize(x, name).double() - u @ v).norm() < 0.4 * math.sqrt(12)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_computed_in_f32_and_rounded_once(dtype: torch.dtype) -> None:
    x = _values((4, 24, 40), dtype=dtype)
    result = orthogonalize(x)
    assert result.dtype == dtype
    assert torch.equal(result, orthogonalize(x.float()).to(dtype))
    assert (result.double() - _reference(x, POLAR_EXPRESS, 1.02)).abs().max() < HALVES[dtype] + 2e-4


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_does_not_matter(scale: float) -> None:
    x = _values((8, 12))
    assert (orthogonalize(x * scale) - orthogonalize(x)).abs().max() < 2e-4


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_a_matrix_has_the_same_bits_alone_in_a_batch_and_under_any_strides_and_threads(dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    for rows, columns in ((40, 24), (24, 200), (130, 130)):
        x = _values((2, 3, rows, columns), dtype=dtype)
        together = orthogonalize(x)
        for index in ((0, 0), (0, 2), (1, 1)):
            assert torch.equal(orthogonalize(x[index]), together[index])
            assert torch.equal(orthogonalize(x[index].expand(4, rows, columns))[3], together[index])
        apart = torch.empty(2, 3, rows + 1, 3 * columns, dtype=dtype)[..., 1:, ::3].copy_(x)
        for strided in (x.mT.contiguous().mT, x.transpose(0, 1).contiguous().transpose(0, 1), apart):
            assert not strided.is_contiguous()
            assert torch.equal(orthogonalize(strided), together)
        try:
            for number in (1, 3):
                torch.set_num_threads(number)
                assert torch.equal(orthogonalize(x), together)
        finally:
            torch.set_num_threads(threads)


def test_the_transpose_has_the_transposed_factor() -> None:
    x = _values((3, 20, 50))
    assert (orthogonalize(x.mT) - orthogonalize(x).mT).abs().max() < 2e-4
    assert torch.equal(orthogonalize(x.mT), orthogonalize(x.mT.contiguous()))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_stay_in_their_matrix_and_zeros_stay_zero(bad: float) -> None:
    x = _values((3, 6, 9))
    x[0, 2, 3] = bad
    x[1] = 0
    result = orthogonalize(x)
    assert result[0].isnan().all() and torch.equal(result[1], x[1])
    assert torch.equal(result[2], orthogonalize(x[2]))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0)], ids=str)
def test_nothing_to_do(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    assert orthogonalize(x).shape == shape
    out = torch.empty(shape)
    assert orthogonalize(x, out=out) is out


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_out_may_have_any_strides_and_overlap_x(dtype: torch.dtype) -> None:
    x = _values((3, 8, 12), dtype=dtype)
    expected = orthogonalize(x)
    for out in (torch.empty_like(x), torch.empty(3, 12, 8, dtype=dtype).mT, torch.empty(3, 8, 24, dtype=dtype)[..., ::2]):
        version = out._version
        assert orthogonalize(x, out=out) is out
        assert torch.equal(out, expected) and out._version > version
    buffer = torch.empty(4, 8, 12, dtype=dtype)
    for begin in (0, 1):  # x itself, and memory that begins one matrix later
        buffer[:3].copy_(x)
        out = buffer[begin : begin + 3]
        assert torch.equal(orthogonalize(buffer[:3], out=out), expected)
    strided = x.mT.contiguous().mT
    assert torch.equal(orthogonalize(strided, out=strided), expected) and strided.stride() == (96, 1, 8)


def test_refuses_bad_input_by_name_and_value() -> None:
    x = torch.ones(3, 4)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([[1.0]], {}, r"x \[\[1.0\]\]: expected a tensor"),
        (x.double(), {}, "x of torch.float64: expected torch.float32, torch.bfloat16 or torch.float16"),
        (x.to(torch.complex64), {}, "x of torch.complex64: expected"),
        (x.int(), {}, "x of torch.int32: expected"),
        (x[0], {}, r"x of shape \(4,\): expected at least 2 dimensions"),
        (torch.tensor(1.0), {}, r"x of shape \(\): expected at least 2 dimensions"),
        (x.to_sparse(), {}, "x of layout torch.sparse_coo: expected torch.strided"),
        (x, {"out": torch.ones(4, 3)}, r"out of shape \(4, 3\): expected that of x, \(3, 4\)"),
        (x, {"out": torch.empty(0)}, r"out of shape \(0,\): expected that of x"),
        (x, {"out": torch.ones(3, 4).bfloat16()}, "out of torch.bfloat16: expected that of x, torch.float32"),
        (x, {"out": torch.ones(3, 4, device="meta")}, "out on meta: expected that of x, cpu"),
        (x, {"out": 1}, "out 1: expected a tensor"),
        (x, {"coefficients": "polar"}, "coefficients 'polar': expected one of jordan"),
        (x, {"coefficients": [(1, 2)]}, r"coefficients \[\(1, 2\)\]: expected a name, or one \(a, b, c\) per step"),
        (x, {"coefficients": 5}, "coefficients 5: expected a name"),
        (x, {"coefficients": []}, 'coefficients "custom": 0 steps, expected 1 to 64'),
        (x, {"coefficients": [(1, math.nan, 2)]}, "coefficient nan: expected a finite number"),
    ]
    for given, options, text in cases:
        with pytest.raises(ValueError, match=text) as raised:
            orthogonalize(given, **options)
        assert "\n" not in str(raised.value)
    with pytest.raises(RuntimeError, match="single memory location"):  # torch's own
        orthogonalize(x, out=torch.ones(1, 4).expand(3, 4))


def test_refuses_what_needs_a_derivative() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(ValueError, match="x requires_grad=True: orthogonalize has no derivative"):
        orthogonalize(x)
    with pytest.raises(ValueError, match="out requires_grad=True: orthogonalize has no derivative"):
        orthogonalize(x.detach(), out=x)
    with torch.no_grad():
        assert not orthogonalize(x).requires_grad
        orthogonalize(x, out=x)
    assert not orthogonalize(x.detach()).requires_grad
    with torch.inference_mode():
        assert orthogonalize(x).shape == x.shape


def test_meta_tensors_give_meta_tensors() -> None:
    x = torch.empty(5, 3, 4, dtype=torch.bfloat16, device="meta").mT
    result = orthogonalize(x)
    assert (result.shape, result.dtype, result.device.type) == (x.shape, x.dtype, "meta") and result.is_contiguous()
    out = torch.empty_like(x)
    assert orthogonalize(x, out=out) is out
    with pytest.raises(ValueError, match="coefficients 'polar'"):
        orthogonalize(x, "polar")


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_torch_accepts_the_operations(dtype: torch.dtype) -> None:
    x = _values((3, 8, 12), dtype=dtype)
    for given in (x, x.mT, x[:0]):
        torch.library.opcheck(torch.ops.muster.orthogonalize.default, (given, "polar_express", []))
        out = torch.empty(given.shape, dtype=dtype)
        steps = [number for step in QUINTIC for number in step]
        torch.library.opcheck(torch.ops.muster.orthogonalize_out.default, (given, "", steps, out))


def _update(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    first = orthogonalize(x * 2, "jordan").add(1)
    orthogonalize(x.mT, QUINTIC, out=out)
    return first.mT + out


def test_compiles_without_a_graph_break() -> None:
    x, out, other = _values((2, 8, 12)), torch.empty(2, 12, 8), torch.empty(2, 12, 8)
    expected = _update(x, other)
    torch._dynamo.reset()
    counter = CompileCounter()
    assert torch.equal(torch.compile(_update, backend=counter, fullgraph=True)(x, out), expected)
    assert counter.frame_count == 1 and torch._dynamo.explain(_update)(x, out).graph_break_count == 0
    for dynamic in (False, True):
        torch._dynamo.reset()
        out.zero_()
        compiled = torch.compile(_update, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        assert torch.equal(compiled(x, out), expected) and torch.equal(out, other)


def test_compiles_in_place() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        orthogonalize(x, out=x)
        return x + 1

    torch._dynamo.reset()
    x, y = _values((8, 12)), _values((8, 12))
    assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(x), step(y)) and torch.equal(x, y)


def test_inductor_compiles_it() -> None:
    """Without operations beside it, for which inductor would compile C++ for half a minute."""
    torch._dynamo.reset()
    x = _values((8, 12))
    compiled = torch.compile(lambda x: orthogonalize(x.mT, QUINTIC), fullgraph=True)
    assert torch.equal(compiled(x), orthogonalize(x.mT, QUINTIC))
