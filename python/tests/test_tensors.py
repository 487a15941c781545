"""Kinds of parameters and gradients: dtypes, strides, sizes, signs."""

from __future__ import annotations

import copy

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import muster.torch

DTYPES = [torch.float32, torch.bfloat16]


def _start(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _gradient(shape: torch.Size, step: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(step + 1))


def _train(
    optimizer: torch.optim.Optimizer, weight: torch.Tensor, steps: range, dtype: torch.dtype, spread=lambda g: g
) -> None:
    for step in steps:
        weight.grad = None
        weight.grad_dtype = dtype
        weight.grad = spread(_gradient(weight.shape, step).bfloat16().to(dtype))
        optimizer.step()


@pytest.mark.parametrize("algorithm", ["normuon", "adamw"])
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("gradients", DTYPES)
def test_gradients_may_have_another_dtype_than_weights(algorithm: str, weights, gradients) -> None:
    """They are values of bfloat16 here, in either dtype: the same update."""
    one, other = (nn.Parameter(_start(6, 4).to(weights)) for _ in range(2))
    for weight, dtype in ((one, gradients), (other, weights)):
        _train(muster.torch.NorMuon([weight], algorithm=algorithm), weight, range(3), dtype)
    assert torch.equal(one, other) and not torch.equal(one, _start(6, 4).to(weights))


def test_float32_gradients_of_bf16_weights_are_not_rounded() -> None:
    weight = nn.Parameter(_start(6, 4).bfloat16())
    weight.grad_dtype = torch.float32
    weight.grad = _gradient(weight.shape, 0)
    optimizer = muster.torch.Muon([weight])
    optimizer.step()
    expected = 0.05 * weight.grad  # of "ema" with a momentum of 0.95
    assert torch.allclose(optimizer.state[weight]["momentum"], expected, rtol=1e-6)
    assert not torch.allclose(expected, expected.bfloat16().float(), rtol=1e-6)


def test_the_dtype_of_gradients_may_change() -> None:
    """A plan for bfloat16 is made again for float32, with its state; then both are taken."""
    one, other = (nn.Parameter(_start(6, 4).bfloat16()) for _ in range(2))
    optimizer, reference = muster.torch.NorMuon([one]), muster.torch.NorMuon([other])
    optimizer.plan(verbose=False)
    for step, dtype in enumerate((torch.bfloat16, torch.float32, torch.bfloat16, torch.float32)):
        _train(optimizer, one, range(step, step + 1), dtype)
        _train(reference, other, range(step, step + 1), torch.float32)
    assert torch.equal(one, other)
    assert int(optimizer.state[one]["steps"]) == 4
    one.grad = None
    one.grad_dtype = torch.float16
    one.grad = torch.ones(6, 4, dtype=torch.float16)
    with pytest.raises(ValueError, match="'group0.param0': its gradient is torch.float16"):
        optimizer.step()


def _dtypes_on_ranks(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    spread = lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)  # noqa: E731
    whole = nn.Parameter(_start(7, 4).bfloat16())
    sharded = nn.Parameter(spread(_start(7, 4).bfloat16()))
    single = [torch.distributed.new_group([r]) for r in range(ranks)][rank]
    optimizer = muster.torch.NorMuon([("w", sharded)])
    for step in range(3):
        if step == 0 and rank == 1:  # it has none, and learns the dtype from the others
            optimizer.step()
            continue
        _train(optimizer, sharded, range(step, step + 1), torch.float32, spread)
    reference = muster.torch.NorMuon([("w", whole)], process_group=single)
    for step in range(3):
        gradient = _gradient(whole.shape, step).bfloat16().float()
        if step == 0:
            gradient[4:] = 0
        whole.grad_dtype = torch.float32
        whole.grad = gradient
        reference.step()
    assert torch.equal(sharded.full_tensor(), whole)
    # With grad_sync gradients are averaged in the dtype of the weights.
    averaged = [nn.Parameter(_start(6, 4).bfloat16()) for _ in range(2)]
    for weight, dtype in zip(averaged, (torch.float32, torch.bfloat16)):
        _train(muster.torch.NorMuon([("w", weight)], grad_sync=True), weight, range(3), dtype)
    assert torch.equal(*averaged)


def test_ranks_agree_about_the_dtype_of_gradients() -> None:
    run_ranks(2, _dtypes_on_ranks)


def _every_second(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, values], -1)[..., 0]


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("shape", "stride", "options"),
    [
        ((10, 5), _every_second, {}),
        ((6, 9), _transposed, {"bf16_weights": "master"}),
        ((6, 9), _transposed, {"algorithm": "adamw"}),
        ((8, 3, 3, 3), _channels_last, {"flatten": True}),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_change_a_bit(shape, stride, options, dtype, tmp_path) -> None:
    plain = nn.Parameter(_start(*shape).to(dtype))
    strided = nn.Parameter(stride(_start(*shape).to(dtype)))
    assert not strided.is_contiguous()
    strides = strided.stride()
    pairs = [(weight, muster.torch.NorMuon([("w", weight)], lr=0.1, **options)) for weight in (plain, strided)]
    for step in range(4):
        for weight, optimizer in pairs:
            weight.grad = _gradient(weight.shape, step).to(dtype)
            if weight is strided and step % 2 == 0:
                weight.grad = stride(weight.grad)
            optimizer.step()
        with torch.no_grad():  # what a user does to weights between steps counts
            for weight, _ in pairs:
                weight.mul_(0.5)
        if step == 1:
            for weight, optimizer in pairs:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                optimizer.save(tmp_path / "checkpoint")
                saved = weight.detach().clone()
                with torch.no_grad():
                    weight.zero_()
                optimizer.load(tmp_path / "checkpoint")
                assert torch.equal(weight, saved)
        if step == 2:
            strided.data = stride(strided.data.clone())  # it moves
    assert torch.equal(plain, strided) and strided.stride() == strides
    with pytest.raises(ValueError, match="overlap=True: parameter 'w' is not contiguous"):
        muster.torch.NorMuon([("w", strided)], overlap=True, **options).plan(verbose=False)


def test_a_weight_that_becomes_strided_is_followed() -> None:
    plain, other = (nn.Parameter(_start(6, 9)) for _ in range(2))
    pairs = [(weight, muster.torch.NorMuon([weight])) for weight in (plain, other)]
    for step in range(3):
        for weight, optimizer in pairs:
            weight.grad = _gradient(weight.shape, step)
            optimizer.step()
        other.data = _transposed(other.data) if step == 0 else other.data.contiguous()
    assert torch.equal(plain, other)


def test_parameters_without_elements_sit_out() -> None:
    weight, twin = nn.Parameter(_start(6, 4)), nn.Parameter(_start(6, 4))
    nothing = [nn.Parameter(torch.zeros(shape)) for shape in ((0, 4), (0,), (3, 0, 2))]
    groups = [{"params": [nothing[0], weight, nothing[2]]}, {"params": [nothing[1]], "algorithm": "adamw"}]
    optimizer, reference = muster.torch.NorMuon(groups), muster.torch.NorMuon([twin])
    for step in range(3):
        weight.grad = twin.grad = _gradient(weight.shape, step)
        for each in nothing:
            each.grad = torch.zeros_like(each)
        optimizer.step()
        reference.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(weight, twin)
    assert optimizer.state[nothing[0]]["momentum"].shape == (0, 4)
    optimizer.clip_grad_norm(1.0)
    only = muster.torch.NorMuon([nn.Parameter(torch.zeros(0, 4))])
    only.step()


@pytest.mark.parametrize("overlap", [False, True])
def test_maximize_negates_gradients_and_leaves_them_alone(overlap: bool) -> None:
    grown, shrunk = (nn.Parameter(_start(6, 4)) for _ in range(2))
    gain, loss = (nn.Parameter(_start(5)) for _ in range(2))
    up = [{"params": [grown], "maximize": True}, {"params": [gain], "algorithm": "adamw", "maximize": True}]
    down = [{"params": [shrunk]}, {"params": [loss], "algorithm": "adamw"}]
    pairs = [(up, 1.0), (down, -1.0)]
    optimizers = [muster.torch.NorMuon(groups, overlap=overlap) for groups, _ in pairs]
    for step in range(4):
        for optimizer, (_, sign) in zip(optimizers, pairs):
            optimizer.zero_grad()
            total = sum(
                sign * (_gradient(p.shape, step) * p).sum() for g in optimizer.param_groups for p in g["params"]
            )
            total.backward()
            before = optimizer.param_groups[0]["params"][0].grad.clone()
            optimizer.step()
            assert torch.equal(optimizer.param_groups[0]["params"][0].grad, before)
            if step == 1:  # and back again
                for group in optimizer.param_groups:
                    group["maximize"] = not group["maximize"]
    assert torch.equal(grown, shrunk) and torch.equal(gain, loss)


def test_a_convolution_without_flatten_is_refused() -> None:
    weight = nn.Parameter(torch.ones(8, 3, 3, 3))
    with pytest.raises(ValueError, match=r"'w': shape \(8, 3, 3, 3\).*flatten=True"):
        muster.torch.Muon([("w", weight)])
    for options in ({"flatten": True}, {"view": (8, 27)}, {"algorithm": "lion"}):
        muster.torch.Muon([("w", weight)], **options).plan(verbose=False)
    muster.torch.Muon([("stack", nn.Parameter(torch.ones(8, 3, 9)))]).plan(verbose=False)


@pytest.mark.parametrize("others", [0, 1])
def test_a_gradient_whose_memory_was_freed_is_refused(others: int) -> None:
    weights = [nn.Parameter(_start(6, 4)) for _ in range(1 + others)]
    optimizer = muster.torch.NorMuon([(f"w{i}", weight) for i, weight in enumerate(weights)])
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    weights[-1].grad.untyped_storage().resize_(0)
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(ValueError, match=f"'w{others}': the memory of its gradient was freed"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, weights))
    optimizer.param_groups[0]["maximize"] = True
    with pytest.raises(ValueError, match=f"'w{others}': the memory of its gradient was freed"):
        optimizer.step()


def test_a_parameter_given_twice_is_a_warning_then_an_error() -> None:
    weight = nn.Parameter(_start(6, 4))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = muster.torch.NorMuon([weight, weight])
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="share memory"):
        optimizer.step()
