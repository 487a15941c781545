"""Training, and bad input, on several ranks: every rank raises, none hangs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import muster
import muster.torch


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 8), nn.Linear(8, 13))


def _train(model: nn.Module, rank: int, ranks: int, steps: int = 60, **options) -> list[float]:
    """Each rank has its part of the batch."""
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, adamw_lr=0.01, verbose=False), **options)
    losses = []
    for step in range(steps):
        tokens = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13)
        loss.backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def _three_ways(rank: int, ranks: int) -> None:
    sharded = _model()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    fsdp = _train(sharded, rank, ranks)
    ddp = _train(DistributedDataParallel(_model()), rank, ranks)
    ours = _train(_model(), rank, ranks, grad_sync=True)
    assert fsdp[-1] < fsdp[0] / 2
    # Gradients are averaged in other orders, so that losses drift apart by roundings.
    assert ddp == pytest.approx(fsdp, rel=1e-2)
    assert ours == pytest.approx(fsdp, rel=1e-2)


def test_fsdp_ddp_and_our_own_averages_train_alike() -> None:
    run_ranks(3, _three_ways)


def _declared_experts(rank: int, ranks: int) -> None:
    """Rank-local experts as plain tensors: an error, unless declared; then the bits of one stack of them."""
    stack = torch.randn(ranks * 2, 6, 4, generator=torch.Generator().manual_seed(0))
    mine = nn.Parameter(stack.chunk(ranks)[rank].clone())
    with pytest.raises(ValueError, match=r"'experts'.*rank_local"):
        muster.torch.NorMuon([("experts", mine)]).plan(verbose=False)
    group = {"params": [("experts", mine)], "mesh": init_device_mesh("cpu", (ranks,)), "placements": [Shard(0)]}
    optimizer = muster.torch.NorMuon([group])
    whole = nn.Parameter(stack.clone())
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    reference = muster.torch.NorMuon([("experts", whole)], process_group=single)
    for _ in range(3):
        whole.grad = torch.sin(whole.detach() * 7)
        mine.grad = whole.grad.chunk(ranks)[rank].clone()
        optimizer.step()
        reference.step()
    assert torch.equal(mine, whole.chunk(ranks)[rank])
    assert not torch.equal(whole, stack)


def test_rank_local_experts_must_be_declared() -> None:
    run_ranks(2, _declared_experts)


def _sharded(shape: tuple[int, ...] = (6, 4), placement=Shard(0)) -> nn.Parameter:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [placement]))


def _partial(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Partial()]))
    muster.torch.NorMuon([("w", weight)]).plan(verbose=False)


def _gradient_in_another_layout_on_one_rank(rank: int) -> None:
    weight = _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)])
    placement = Replicate() if rank == 1 else Shard(0)
    weight.grad = distribute_tensor(torch.ones(6, 4), weight.device_mesh, [placement], src_data_rank=None)
    try:
        optimizer.step()
    except ValueError:
        # Nobody has made a step, and everybody goes on.
        weight.grad = distribute_tensor(torch.ones(6, 4), weight.device_mesh, [Shard(0)], src_data_rank=None)
        optimizer.step()
        raise


def _other_order(rank: int) -> None:
    named = [("a", _sharded()), ("b", _sharded((4, 4)))]
    muster.torch.NorMuon(named if rank == 0 else named[::-1]).plan(verbose=False)


def _other_number(rank: int) -> None:
    named = [("a", _sharded()), ("b", _sharded((4, 4)))]
    muster.torch.NorMuon(named[: rank + 1]).plan(verbose=False)


def _float64_on_one_rank(rank: int) -> None:
    weight = torch.ones(4, 4, dtype=torch.float64 if rank == 1 else torch.float32)
    muster.torch.NorMuon([("w", nn.Parameter(weight))]).plan(verbose=False)


def _other_learning_rate(rank: int) -> None:
    weight = _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)], lr=0.1 * (rank + 1))
    weight.grad = torch.ones_like(weight)
    optimizer.step()


def _planned(**options) -> muster.torch.NorMuon:
    weight = nn.Parameter(torch.ones(6, 4)) if "grad_sync" in options else _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)], **options)
    optimizer.plan(verbose=False)
    return optimizer


#: What makes a state_dict unusable.
SPOILED: list[tuple[Callable[[dict], dict], str]] = [
    (lambda _: {}, "no 'state'"),
    (lambda state: {**state, "param_groups": 2 * state["param_groups"]}, "number of parameter groups"),
    (lambda state: {**state, "state": {0: {**state["state"][0], "momentum": "much"}}}, "'w': momentum is a str"),
    (lambda state: {**state, "state": {0: {**state["state"][0], "momentum": torch.ones(2, 2)}}}, "'w': momentum has"),
]


def _load_is_local(rank: int, ranks: int) -> None:
    """Where ranks keep the state of what they hold: one that cannot load raises alone, and changed nothing."""
    optimizer = _planned()
    state = optimizer.state_dict()
    for spoil, match in SPOILED:
        if rank == 1:
            optimizer.param_groups[0]["lr"] = 0.5
            with pytest.raises(ValueError, match=match):
                optimizer.load_state_dict(spoil(state))
            assert optimizer.param_groups[0]["lr"] == 0.5
        else:
            optimizer.load_state_dict(state)
    # Each rank may have a tensor in the form that it likes.
    momentum = torch.arange(24.0).reshape(6, 4)
    if rank == 0:
        state["state"][0]["momentum"] = distribute_tensor(
            momentum, init_device_mesh("cpu", (ranks,)), [Replicate()], src_data_rank=None
        )
    else:
        state["state"][0]["momentum"] = momentum
    optimizer.load_state_dict(state)
    mine = optimizer.state_dict()["state"][0]["momentum"]
    assert torch.equal(mine.to_local(), momentum.chunk(ranks)[rank])


def test_a_state_is_loaded_without_messages() -> None:
    run_ranks(2, _load_is_local)


def _load_is_refused_by_all(rank: int, ranks: int) -> None:
    """Where the engine keeps state, all ranks load it together."""
    optimizer = _planned(grad_sync=True)
    state = optimizer.state_dict()
    assert torch.equal(state["state"][0]["momentum"], torch.zeros(6, 4))
    assert "momentum" not in optimizer.state[optimizer.param_groups[0]["params"][0]]
    with pytest.raises(ValueError, match="'w': momentum has"):
        optimizer.load_state_dict(SPOILED[-1][0](state) if rank == 1 else state)


def test_a_state_that_the_engine_keeps_is_refused_by_all_ranks() -> None:
    run_ranks(2, _load_is_refused_by_all)


def _group_without_parameters_on_one_rank(rank: int) -> None:
    optimizer = muster.torch.NorMuon([("w", _sharded())])
    more = _sharded()
    optimizer.add_param_group({"lr": 1.0} if rank == 1 else {"params": [("v", more)]})


def _import_torch(rank: int, spoil: Callable[[dict], object]) -> None:
    theirs = torch.optim.Muon([("w", nn.Parameter(torch.ones(6, 4)))])
    state = theirs.state_dict()
    state["state"] = {0: {"momentum_buffer": distribute_tensor(torch.ones(6, 4), _sharded().device_mesh, [Shard(0)])}}
    if rank == 1:
        spoil(state)
    muster.torch.import_torch(muster.torch.Muon([("w", _sharded())]), state)


def _checkpoint_of_torch_with_less_on_one_rank(rank: int) -> None:
    _import_torch(rank, lambda state: state["param_groups"][0].pop("ns_steps"))


def _words_from_torch_on_one_rank(rank: int) -> None:
    _import_torch(rank, lambda state: state["state"][0].update(momentum_buffer="much"))


def _no_maximum_on_one_rank(rank: int) -> None:
    weight = _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)])
    weight.grad = torch.ones_like(weight)
    optimizer.clip_grad_norm(float("nan") if rank == 1 else 1.0)


def _not_a_rate_on_one_rank(rank: int) -> None:
    weight = _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = float("nan") if rank == 1 else 0.02
    optimizer.step()


def _no_such_wire_on_one_rank(rank: int) -> None:
    muster.torch.NorMuon([("w", _sharded())], wire="f8" if rank == 1 else "bf16")


def _no_such_time_on_one_rank(rank: int) -> None:
    muster.torch.NorMuon([("w", _sharded())], timeout=10 if rank == 1 else timedelta(seconds=20))


def _unknown_key_in_a_group_added_on_one_rank(rank: int) -> None:
    optimizer = muster.torch.NorMuon([("w", _sharded())])
    optimizer.add_param_group({"params": [("v", _sharded())], **({"scal": "rms"} if rank == 1 else {})})


MISUSES: list[tuple[Callable[[int], None], str]] = [
    (_partial, "'w'.*Partial|'w'.*P"),
    (_gradient_in_another_layout_on_one_rank, "'w'.*redistribute"),
    (_other_order, "'a'.*name"),
    (_other_number, "1 parameters and rank 1 has 2"),
    (_float64_on_one_rank, "'w'.*float64"),
    (_other_learning_rate, "group 0"),
    (_group_without_parameters_on_one_rank, "params"),
    (_checkpoint_of_torch_with_less_on_one_rank, "ns_steps"),
    (_words_from_torch_on_one_rank, "'w'.*is a str"),
    (_no_maximum_on_one_rank, "max_norm nan"),
    (_not_a_rate_on_one_rank, "group 0 .of 'w'.*lr nan"),
    (_no_such_wire_on_one_rank, "wire 'f8'"),
    (_no_such_time_on_one_rank, "timeout 10: expected a timedelta"),
    (_unknown_key_in_a_group_added_on_one_rank, "unknown key 'scal'.*'scale'"),
]


def _all_misuses(rank: int, ranks: int) -> None:
    for misuse, match in MISUSES:
        with pytest.raises(ValueError, match=match):
            misuse(rank)


def _no_gradient_on_one_rank(rank: int, ranks: int) -> None:
    weight = _sharded()
    optimizer = muster.torch.NorMuon([("w", weight)])
    if rank == 0:
        weight.grad = torch.full_like(weight, 2.0)
    norm = optimizer.clip_grad_norm(1.0)
    assert norm == pytest.approx(2.0 * 12**0.5)
    if rank == 0:
        assert weight.grad.to_local().norm().item() == pytest.approx(1.0, rel=1e-4)


def test_clipping_does_not_mind_a_rank_without_gradients() -> None:
    run_ranks(2, _no_gradient_on_one_rank)


def _moved_on_one_rank(rank: int, ranks: int) -> None:
    """torch 2.7 pads the uneven shards of FSDP2 before the first forward: the last rank's parameters move."""
    weight, twin = _sharded((3, 4)), _sharded((3, 4))
    optimizers = [muster.torch.NorMuon([("w", w)]) for w in (weight, twin)]
    for step in range(3):
        for each, optimizer in zip((weight, twin), optimizers):
            each.grad = torch.sin(each.detach() + step)
            optimizer.step()
        if rank == step % 2:
            weight._local_tensor = weight._local_tensor.clone()
    assert torch.equal(weight.to_local(), twin.to_local())
    assert not torch.equal(weight.to_local(), torch.ones_like(weight.to_local()))


def test_a_parameter_that_moves_on_one_rank_is_followed() -> None:
    run_ranks(2, _moved_on_one_rank)


def test_every_rank_raises_what_one_did_wrong() -> None:
    run_ranks(2, _all_misuses)


def _slices_of_a_mesh(rank: int, ranks: int) -> None:
    """Each rank sees its own slice, and a state on it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    weight = nn.Parameter(distribute_tensor(torch.ones(6, 4), mesh["tensor"], [Shard(0)]))
    optimizer = muster.torch.NorMuon([("w", weight)])
    weight.grad = torch.sin(weight.detach())
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    momentum = state["state"][0]["momentum"].full_tensor()
    weight.grad = torch.cos(weight.detach())
    optimizer.step()
    optimizer.load_state_dict(state)
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum"].full_tensor(), momentum)


def test_a_state_on_slices_of_a_mesh_is_loaded() -> None:
    run_ranks(4, _slices_of_a_mesh)


@pytest.mark.parametrize("timeout", [10, timedelta(0), timedelta(seconds=-1)])
def test_a_timeout_is_a_time(timeout: object) -> None:
    with pytest.raises(ValueError, match="timeout .*: expected a timedelta of a millisecond or more"):
        muster.torch.NorMuon([torch.nn.Parameter(torch.ones(2, 2))], timeout=timeout)
