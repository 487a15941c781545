"""Param groups that change after the optimizer was made: the plan, the state and the hyperparameters follow."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import muster
import muster.torch

SHAPES = [(6, 4), (8, 5), (4, 4)]


def _weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _set_gradients(weights: list[nn.Parameter], step: int) -> None:
    for number, weight in enumerate(weights):
        weight.grad = torch.sin(weight.detach() * (3 + number) + step)


def _steps(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        _set_gradients(weights, step)
        optimizer.step()


def _same(a: list[nn.Parameter], b: list[nn.Parameter]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("named", [True, False])
def test_a_replaced_tensor_trains_and_has_the_state_of_its_name(named: bool) -> None:
    weights, twins = _weights(), _weights()
    give = lambda ws: [(f"w{i}", w) for i, w in enumerate(ws)] if named else ws  # noqa: E731
    optimizer, reference = muster.torch.NorMuon(give(weights)), muster.torch.NorMuon(give(twins))
    _steps(optimizer, weights, range(2))
    _steps(reference, twins, range(2))
    weights[1] = nn.Parameter(weights[1].detach().clone())
    optimizer.param_groups[0]["params"][1] = weights[1]
    _steps(optimizer, weights, range(2, 4))
    _steps(reference, twins, range(2, 4))
    assert _same(weights, twins)
    assert list(optimizer.state) == weights


def test_a_tensor_replaced_before_the_first_step_trains() -> None:
    weights, twins = _weights(), _weights()
    optimizer, reference = muster.torch.NorMuon(weights), muster.torch.NorMuon(twins)
    optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does in prepare()
    assert not optimizer.state
    weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    optimizer.param_groups[0]["params"] = list(weights)
    _steps(optimizer, weights, range(2))
    _steps(reference, twins, range(2))
    assert _same(weights, twins)


def test_an_appended_tensor_trains_and_a_removed_one_does_not() -> None:
    weights, twins = _weights(), _weights()
    optimizer = muster.torch.NorMuon([("a", weights[0]), ("b", weights[1])])
    _steps(optimizer, weights, range(2))
    optimizer.param_groups[0]["params"].append(weights[2])
    del optimizer.param_groups[0]["params"][0]
    before, momentum = weights[0].detach().clone(), optimizer.state[weights[1]]["momentum"]
    kept = momentum.clone()
    _steps(optimizer, weights, range(2, 3))
    assert torch.equal(weights[0], before) and weights[0] not in optimizer.state
    assert not torch.equal(weights[2], twins[2])
    assert optimizer.state[weights[1]]["momentum"] is momentum and not torch.equal(momentum, kept)
    assert int(optimizer.state[weights[2]]["updates"]) == 1 and int(optimizer.state[weights[1]]["updates"]) == 3
    assert optimizer.names == ["b", "group0.param1"] == optimizer.param_groups[0]["param_names"]


def test_hyperparameters_follow_their_group_and_not_its_position() -> None:
    weights, twins = _weights(), _weights()
    optimizer = muster.torch.NorMuon([{"params": [w], "lr": 0.1 * (i + 1)} for i, w in enumerate(weights)])
    reference = muster.torch.NorMuon([{"params": [w], "lr": 0.1 * (i + 1)} for i, w in enumerate(twins)])
    _steps(optimizer, weights, range(2))
    _steps(reference, twins, range(2))
    del optimizer.param_groups[0]
    optimizer.param_groups.reverse()
    gone = weights[0].detach().clone()
    _steps(optimizer, weights, range(2, 4))
    _steps(reference, twins, range(2, 4))
    assert _same(weights[1:], twins[1:]) and torch.equal(weights[0], gone)
    # A parameter that goes to another group takes its state along.
    optimizer.param_groups[0]["params"].append(optimizer.param_groups[1]["params"].pop())
    reference.param_groups[1]["lr"] = 0.1 * 3
    _steps(optimizer, weights, range(4, 6))
    _steps(reference, twins, range(4, 6))
    assert _same(weights[1:], twins[1:])


def test_a_group_appended_by_hand_has_the_defaults() -> None:
    weights = _weights()
    optimizer = muster.torch.NorMuon(weights[:1], lr=0.3)
    _steps(optimizer, weights, range(1))
    optimizer.param_groups.append({"params": (weights[1],), "algorithm": "muon"})
    _steps(optimizer, weights, range(1, 2))
    assert optimizer.param_groups[1]["lr"] == 0.3 and "variance" not in optimizer.state[weights[1]]


def test_a_tensor_of_another_shape_starts_from_zero_with_a_warning() -> None:
    weights = _weights()
    optimizer = muster.torch.NorMuon([("w", weights[0])])
    _steps(optimizer, weights, range(2))
    optimizer.param_groups[0]["params"][0] = weights[1]
    with pytest.warns(UserWarning, match=r"'w' was replaced by a tensor of shape \(8, 5\).*starts from zero"):
        _steps(optimizer, weights, range(2, 3))
    assert int(optimizer.state[weights[1]]["updates"]) == 1 and int(optimizer.state[weights[1]]["steps"]) == 3


def test_unknown_keys_pass_through_and_misspelled_ones_do_not() -> None:
    weights = _weights()
    group = {"params": weights[:1], "fused": True, "name": "blocks", "mine": [1], "id": 3, "tp": 2, "my_tag": "x"}
    optimizer = muster.torch.NorMuon([group], foreach=False)
    _steps(optimizer, weights, range(2))
    kept = optimizer.param_groups[0]
    expected = {"fused": True, "name": "blocks", "mine": [1], "foreach": False, "my_tag": "x"}
    assert {key: kept[key] for key in expected} == expected
    loaded = copy.deepcopy(optimizer.state_dict())
    loaded["param_groups"][0]["theirs"] = 5
    optimizer.load_state_dict(loaded)
    assert optimizer.param_groups[0]["theirs"] == 5 and optimizer.param_groups[0]["mine"] == [1]
    for key, known in (("weigth_decay", "weight_decay"), ("lr_mult", "lr_mul"), ("head", "heads"), ("lrs", "lr")):
        with pytest.raises(ValueError, match=f"'{key}'.*'{known}'"):
            muster.torch.NorMuon([{"params": weights[:1], key: 1}])
        with pytest.raises(ValueError, match=f"'{key}'.*'{known}'"):
            muster.torch.NorMuon(weights[:1], **{key: 1})
    translated = {
        "ns_steps": "coefficients=",
        "adjust_lr_fn": "scale=",
        "mu": "momentum=",
        "wd": "weight_decay=",
        "use_muon": "algorithm=",
    }
    for key, ours in translated.items():
        for misuse in ([{"params": weights[:1], key: None}], {}), (weights[:1], {key: None}):
            with pytest.raises(ValueError, match=f"'{key}' is a key of another optimizer; give {ours}"):
                muster.torch.Muon(misuse[0], **misuse[1])
    with pytest.raises(ValueError, match="unknown argument 'my_tag'"):
        muster.torch.NorMuon(weights[:1], my_tag="x")
    with pytest.raises(ValueError, match="rank_local is a key of a param group, not an argument"):
        muster.torch.NorMuon(weights[:1], rank_local=None)
    with pytest.raises(ValueError, match="'overlp'.*'overlap'"):
        muster.torch.NorMuon(weights[:1], overlp=True)
    with pytest.raises(ValueError, match="'bf16_weights' belongs to the optimizer"):
        muster.torch.NorMuon([{"params": weights[:1], "bf16_weights": "master"}])


def test_a_key_that_is_fixed_cannot_change_once_a_plan_was_made() -> None:
    weights = _weights()
    optimizer = muster.torch.NorMuon([{"params": weights[:1]}, {"params": weights[1:2], "split_rows": [4, 4]}])
    optimizer.param_groups[0]["lr_mul"] = 2.0  # no plan was made yet
    _steps(optimizer, weights, range(1))
    before = [weight.detach().clone() for weight in weights]
    for number, key, value, was in (
        (0, "algorithm", "muon", "'normuon'"),
        (0, "lr_mul", 1.0, "2.0"),
        (1, "split_rows", [2, 6], r"\[4, 4\]"),
        (0, "view", (4, 6), "None"),
    ):
        group = optimizer.param_groups[number]
        old, group[key] = group[key], value
        with pytest.raises(ValueError, match=f"group {number}: {key} is fixed.*was {was}.*is "):
            _steps(optimizer, weights, range(1, 2))
        group[key] = old
    optimizer.param_groups[1]["split_rows"][0] = 3  # in place
    with pytest.raises(ValueError, match="split_rows is fixed"):
        _steps(optimizer, weights, range(1, 2))
    optimizer.param_groups[1]["split_rows"][0] = 4
    optimizer.param_groups[0]["mesh"] = None
    with pytest.raises(ValueError, match="mesh is read when the group is added"):
        _steps(optimizer, weights, range(1, 2))
    del optimizer.param_groups[0]["mesh"]
    assert all(torch.equal(a, b) for a, b in zip(weights, before))
    _steps(optimizer, weights, range(1, 2))


def _cycled(make) -> list[list[tuple[float, float]]]:
    weights = [nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(3))]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "algorithm": "adamw"}]
    optimizer = muster.torch.NorMuon(groups, lr=0.1)
    schedule = make(optimizer)
    seen = []
    for _ in range(4):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        seen.append([(group["momentum"], group["betas"][0]) for group in optimizer.param_groups])
        schedule.step()
    return seen


@pytest.mark.parametrize(
    "make",
    [
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=8),
        lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=True),
    ],
)
def test_schedulers_that_cycle_momentum_cycle_ours(make) -> None:
    seen = _cycled(make)
    reference = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    schedule = make(reference)
    for ours in seen:
        momentum = reference.param_groups[0]["momentum"]
        assert ours[0] == (momentum, 0.9)  # NorMuon reads betas[1] only
        assert ours[1] == (momentum, momentum)
        reference.step()
        schedule.step()
    assert len({ours[0][0] for ours in seen}) > 2


def test_betas_and_momentum_of_adamw_are_one_value() -> None:
    gains = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    ours = muster.torch.Muon(gains[:1], algorithm="adamw", lr=0.1, betas=(0.8, 0.99))
    theirs = torch.optim.AdamW(gains[1:], lr=0.1, betas=(0.8, 0.99), weight_decay=0.0)
    assert ours.param_groups[0]["momentum"] == 0.8
    for step, beta in enumerate((0.8, 0.7, 0.6)):
        if step == 1:
            ours.param_groups[0]["betas"] = (beta, 0.99)
        if step == 2:
            ours.param_groups[0]["momentum"] = beta
        theirs.param_groups[0]["betas"] = (beta, 0.99)
        for gain in gains:
            gain.grad = torch.tensor([1.0, -2.0, 3.0]) * (step + 1)
        ours.step()
        theirs.step()
        assert ours.param_groups[0]["betas"] == (beta, 0.99) and ours.param_groups[0]["momentum"] == beta
        assert torch.allclose(*gains, atol=1e-6)  # in another order of float32 operations


# Several ranks.


def _prepare(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """As accelerate does for FSDP2 with cpu_ram_efficient_loading: rank 0 alone has weights, others have garbage."""
    optimizer.load_state_dict(optimizer.state_dict())
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for place in range(len(group["params"])):
            group["params"][place] = torch.empty(1)
    whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for name, parameter in model.named_parameters():
        dist.broadcast(whole[name], src=0)
        mine = distribute_tensor(whole[name], parameter.device_mesh, parameter.placements)
        parameter.detach().to_local().copy_(mine.to_local())
    now = dict(model.named_parameters())
    for group, members in zip(optimizer.param_groups, groups):
        group["params"] = [now[name] for name in members]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 17), nn.Linear(17, 8, bias=False), nn.Linear(8, 3))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, ranks: int) -> list[float]:
    losses = []
    for step in range(6):
        inputs = torch.randn(8 * ranks, 8, generator=torch.Generator().manual_seed(0)).chunk(ranks)[rank]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _prepared(rank: int, ranks: int) -> None:
    make = lambda model: muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))  # noqa: E731
    model = _model()
    if rank > 0:
        for parameter in model.parameters():
            nn.init.constant_(parameter, float(rank))
    optimizer = make(model)
    _prepare(model, optimizer, rank)
    losses = _train(model, optimizer, rank, ranks)
    plain = _model()
    for layer in plain:
        fully_shard(layer)
    fully_shard(plain)
    assert losses == _train(plain, make(plain), rank, ranks)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensors_that_a_framework_replaces_by_shards_train(ranks: int) -> None:
    run_ranks(ranks, _prepared)


def _reshard(rank: int, ranks: int) -> None:
    """A replaced tensor in another layout has the state of the one before: bits of a run without it."""
    mesh = init_device_mesh("cpu", (ranks,))
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    start = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    whole = nn.Parameter(start.clone())
    reference = muster.torch.NorMuon([("w", whole)], process_group=single)
    weight = nn.Parameter(start.clone())
    optimizer = muster.torch.NorMuon([("w", weight)])
    for step, placement in enumerate((None, Shard(0), Shard(1), Replicate(), None)):
        if step > 0:
            values = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            values = values.detach().clone()
            if placement is not None:
                values = distribute_tensor(values, mesh, [placement], src_data_rank=None)
            weight = nn.Parameter(values)
            optimizer.param_groups[0]["params"][0] = weight
        for _ in range(2):
            whole.grad = torch.sin(whole.detach() * 7)
            weight.grad = torch.sin(weight.detach() * 7)
            optimizer.step()
            reference.step()
        now = weight.full_tensor() if placement is not None else weight
        assert torch.equal(now, whole), placement
        assert type(optimizer.state[weight]["momentum"]) is type(weight.detach())


def test_state_follows_a_parameter_to_another_layout() -> None:
    run_ranks(3, _reshard)


def _one_rank_changes(rank: int, ranks: int) -> None:
    weights = _weights()
    optimizer = muster.torch.NorMuon(weights[:2], timeout=timedelta(seconds=2))
    _steps(optimizer, weights, range(1))
    if rank == 0:
        optimizer.param_groups[0]["params"].append(weights[2])
    with pytest.raises(muster.CommError):
        _steps(optimizer, weights, range(1, 2))


def test_ranks_that_disagree_about_a_change_raise_in_time() -> None:
    run_ranks(2, _one_rank_changes, timeout=60)
