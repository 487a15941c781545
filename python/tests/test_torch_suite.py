"""What PyTorch's own test/test_optim.py asks of torch.optim.Muon, asked of both: torch's Muon and Muster's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import muster.torch

BOTH = pytest.mark.parametrize("muon", [torch.optim.Muon, muster.torch.Muon], ids=["torch", "muster"])
Muon = Callable[..., torch.optim.Optimizer]


def _weights() -> list[nn.Parameter]:
    seed = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(10, 5, generator=seed)), nn.Parameter(torch.randn(7, 10, generator=seed))]


def _loss(weights: list[nn.Parameter]) -> torch.Tensor:
    hidden = weights[0].mv(torch.linspace(-1, 1, 5)).tanh()
    return (weights[1].mv(hidden) - torch.linspace(0, 1, 7)).pow(2).sum()


def _train(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int = 3) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _loss(weights)
        loss.backward()
        optimizer.step()
    return loss.item()


def _assert_same(a: list[nn.Parameter], b: list[nn.Parameter]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


def _trained(muon: Muon, **options: Any) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    weights = _weights()
    optimizer = muon(weights, lr=0.02, **options)
    _train(optimizer, weights)
    return weights, optimizer


# Copies.


def _by_deepcopy(both: Any) -> Any:
    return copy.deepcopy(both)


def _by_pickle(both: Any) -> Any:
    return pickle.loads(pickle.dumps(both))


def _by_torch_save(both: Any) -> Any:
    file = io.BytesIO()
    torch.save(both, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@BOTH
@pytest.mark.parametrize("how", [_by_deepcopy, _by_pickle, _by_torch_save])
def test_a_copy_goes_on_with_the_same_bits(muon: Muon, how: Callable[[Any], Any]) -> None:
    weights, optimizer = _trained(muon)
    other_weights, other = how((weights, optimizer))
    assert {key for key in vars(optimizer) if key[0] != "_"} == {key for key in vars(other) if key[0] != "_"}
    _train(optimizer, weights)
    assert not torch.equal(weights[0], other_weights[0])
    _train(other, other_weights)
    _assert_same(weights, other_weights)


@BOTH
def test_an_optimizer_can_be_printed(muon: Muon) -> None:
    assert "lr: 0.02" in repr(_trained(muon)[1])


# State.


@BOTH
def test_every_parameter_has_state_after_a_step(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    assert set(optimizer.state) == set(weights)
    for weight in weights:
        entries = optimizer.state[weight].values()
        assert any(isinstance(entry, torch.Tensor) and entry.shape == weight.shape for entry in entries)


@BOTH
def test_cleared_state_starts_from_zero(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    fresh = copy.deepcopy(weights)
    optimizer.state.clear()
    _train(optimizer, weights)
    _train(muon(fresh, lr=0.02), fresh)
    _assert_same(weights, fresh)


@BOTH
def test_the_state_of_a_fresh_optimizer_starts_from_zero(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    fresh = copy.deepcopy(weights)
    optimizer.load_state_dict(muon(_weights(), lr=0.02).state_dict())
    _train(optimizer, weights)
    _train(muon(fresh, lr=0.02), fresh)
    _assert_same(weights, fresh)


@BOTH
def test_a_saved_state_dict_is_equal_when_it_is_read(muon: Muon) -> None:
    state_dict = _trained(muon)[1].state_dict()
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    assert read["param_groups"] == state_dict["param_groups"]
    torch.testing.assert_close(read["state"], state_dict["state"], rtol=0, atol=0)


def _named(weights: list[nn.Parameter], named: bool) -> Any:
    return [(f"name{i}", weight) for i, weight in enumerate(weights)] if named else weights


@BOTH
@pytest.mark.parametrize("from_named", [False, True])
@pytest.mark.parametrize("to_named", [False, True])
def test_state_goes_between_named_and_unnamed(muon: Muon, from_named: bool, to_named: bool) -> None:
    weights = _weights()
    optimizer = muon(_named(weights, from_named), lr=0.02)
    _train(optimizer, weights)
    others = copy.deepcopy(weights)
    other = muon(_named(others, to_named), lr=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _train(optimizer, weights)
    _train(other, others)
    _assert_same(weights, others)
    a, b = optimizer.state_dict(), other.state_dict()
    torch.testing.assert_close(a["state"], b["state"], rtol=0, atol=0)
    assert b["param_groups"][0].get("param_names") == (["name0", "name1"] if from_named or to_named else None)


@BOTH
def test_a_group_that_is_listed_twice_is_written_twice(muon: Muon) -> None:
    optimizer = _trained(muon)[1]
    once = optimizer.state_dict()["param_groups"]
    optimizer.param_groups.extend(optimizer.param_groups)
    assert optimizer.state_dict()["param_groups"] == once * 2


@BOTH
def test_groups_that_do_not_fit_are_refused(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    groups = muon([{"params": [weight]} for weight in _weights()])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(groups.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of (the )?optimizer's group"):
        optimizer.load_state_dict(muon(_weights()[:1]).state_dict())
    before = copy.deepcopy(weights)
    _train(optimizer, weights, 1)
    assert not torch.equal(weights[0], before[0])


# Hooks.


@BOTH
def test_hooks_see_and_change_what_state_dict_returns(muon: Muon) -> None:
    optimizer = _trained(muon)[1]
    optimizer.register_state_dict_pre_hook(lambda opt: opt.state.__setitem__("mark", 1))
    assert optimizer.state_dict()["state"]["mark"] == 1

    def replaced(opt: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        assert state_dict["state"].pop("mark") == 1
        return {**state_dict, "numbers": len(state_dict["state"])}

    optimizer.register_state_dict_post_hook(replaced)
    assert optimizer.state_dict()["numbers"] == 2


@BOTH
def test_hooks_see_and_change_what_is_loaded(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    optimizer.load_state_dict(optimizer.state_dict())

    def halved(opt: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(state_dict)
        changed["param_groups"][0]["lr"] /= 2
        return changed

    seen: list[float] = []
    optimizer.register_load_state_dict_pre_hook(halved)
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append(opt.param_groups[0]["lr"]))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [0.01]

    def cleared(opt: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict["state"] = {}
        state_dict["param_groups"][0]["lr"] = 0.04

    optimizer.register_load_state_dict_pre_hook(cleared, prepend=True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [0.01, 0.02]
    fresh = copy.deepcopy(weights)
    _train(optimizer, weights)
    _train(muon(fresh, lr=0.02), fresh)
    _assert_same(weights, fresh)


@BOTH
def test_hooks_of_a_step_run_in_order(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    calls: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("all before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("all after")),
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
    ]
    _train(optimizer, weights, 2)
    assert calls == ["all before", "before", "after", "all after"] * 2
    for handle in handles:
        handle.remove()
    _train(optimizer, weights, 1)
    assert len(calls) == 8


# Steps.


@BOTH
def test_a_closure_computes_gradients_and_its_loss_is_returned(muon: Muon) -> None:
    weights = _weights()
    optimizer = muon(weights, lr=0.02)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(weights)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first == _loss(_weights()) > _loss(weights)


@BOTH
def test_parameters_without_gradient_stay(muon: Muon) -> None:
    weights = [torch.ones(3, 2), torch.ones(3, 2)]
    optimizer = muon(weights, lr=0.02, weight_decay=0.5)
    optimizer.step()
    weights[1].grad = torch.ones(3, 2)
    optimizer.step()
    assert torch.equal(weights[0], torch.ones(3, 2))
    assert not torch.equal(weights[1], torch.ones(3, 2))


@BOTH
def test_gradients_are_read_only(muon: Muon) -> None:
    weights = _weights()
    _loss(weights).backward()
    before = [(weight.grad.clone(), weight.grad._version) for weight in weights if weight.grad is not None]
    optimizer = muon(weights, lr=0.02)
    optimizer.step()
    for weight, (gradient, version) in zip(weights, before, strict=True):
        assert weight.grad is not None and weight.grad._version == version
        assert torch.equal(weight.grad, gradient)


@BOTH
def test_zero_gradients_move_nothing(muon: Muon) -> None:
    weight = torch.randn(5, 1)
    before = weight.clone()
    weight.grad = torch.zeros(5, 1)
    muon([weight], lr=1e-5, weight_decay=0).step()
    assert torch.equal(weight, before)


@BOTH
@pytest.mark.parametrize("dims", [0, 1, 2])
def test_a_learning_rate_may_be_a_tensor(muon: Muon, dims: int) -> None:
    weights, others = _weights(), _weights()
    _train(muon(weights, lr=0.02), weights)
    _train(muon(others, lr=torch.tensor(0.02).reshape([1] * dims)), others)
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)


@BOTH
def test_groups_have_their_own_learning_rates_and_decays(muon: Muon) -> None:
    still, decays = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    weights = _weights()
    groups = [{"params": weights}, {"params": [still], "lr": 1e-28}, {"params": [decays], "weight_decay": 0.5}]
    optimizer = muon(groups, lr=0.02, weight_decay=0.0)
    still.grad, decays.grad = torch.rand(3, 2), torch.zeros(3, 2)
    optimizer.param_groups[0]["lr"] = 0.04
    before = _loss(weights)
    before.backward()
    optimizer.step()
    assert _loss(weights) < before
    assert torch.equal(still, torch.ones(3, 2))
    torch.testing.assert_close(decays.detach(), torch.full((3, 2), 0.99))


@BOTH
def test_a_group_that_is_added_trains_and_the_others_keep_their_state(muon: Muon) -> None:
    weights, optimizer = _trained(muon)
    more = nn.Parameter(torch.ones(3, 2))
    other_weights, other = copy.deepcopy((weights, optimizer.state_dict()))
    optimizer.add_param_group({"params": [more], "lr": 0.1})
    optimizer.zero_grad()
    _loss(weights).backward()
    more.grad = torch.rand(3, 2)
    optimizer.step()
    continued = muon(other_weights, lr=0.02)
    continued.load_state_dict(other)
    _train(continued, other_weights, 1)
    assert not torch.equal(more, torch.ones(3, 2))
    _assert_same(weights, other_weights)


@BOTH
def test_keys_of_other_optimizers_pass_through(muon: Muon) -> None:
    weights = _weights()
    optimizer = muon([{"params": weights, "foreach": False, "fused": None, "name": "matrices", "mine": [1]}], lr=0.02)
    assert _train(optimizer, weights, 20) < _loss(_weights()).item()
    group = optimizer.state_dict()["param_groups"][0]
    assert (group["foreach"], group["fused"], group["name"], group["mine"]) == (False, None, "matrices", [1])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda _: None,
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, step_size=10),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.9),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=20),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, threshold=0.1, patience=1),
}


def _contiguous(shape: tuple[int, int]) -> torch.Tensor:
    return torch.empty(shape)


def _every_second(shape: tuple[int, int]) -> torch.Tensor:
    return torch.empty(*shape, 2)[..., 0]


def _transposed(shape: tuple[int, int]) -> torch.Tensor:
    return torch.empty(shape[1], shape[0]).T


@BOTH
@pytest.mark.parametrize("strides", [_contiguous, _every_second, _transposed])
@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
def test_the_loss_goes_down(muon: Muon, strides: Callable[[tuple[int, int]], torch.Tensor], scheduler: str) -> None:
    """Whatever the strides of the weights, with all schedulers; and a contiguous weight is updated alike."""
    plain = _weights()
    weights = [nn.Parameter(strides(tuple(weight.shape)).copy_(weight.detach())) for weight in plain]
    assert [weight.stride() for weight in weights] == [strides(tuple(weight.shape)).stride() for weight in plain]
    before = _loss(weights).item()
    for trained in (weights, plain):
        optimizer = muon(trained, lr=0.02)
        schedule = SCHEDULERS[scheduler](optimizer)
        for _ in range(20):
            loss = _train(optimizer, trained, 1)
            if schedule is not None:
                schedule.step(*([loss] if scheduler == "ReduceLROnPlateau" else []))
    assert _loss(weights).item() < before
    for weight, expected in zip(weights, plain, strict=True):
        torch.testing.assert_close(weight, expected, rtol=2e-3, atol=2e-3)


# Errors.
