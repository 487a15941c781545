"""Steps that begin during backward, on several ranks."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
from ranks import run_ranks
from test_overlap import _clip, _loss, _Model, _optimizer, _same, _Slow, _train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import muster
import muster.torch


def _fsdp(model: _Model, ranks: int) -> nn.Module:
    for layer in (model.first, model.twice, model.last):
        fully_shard(layer)
    return fully_shard(model)


def _hsdp(model: _Model, ranks: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("replicate", "shard"))
    for layer in (model.first, model.twice, model.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _ddp(model: _Model, ranks: int) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.001)


def _plain(model: _Model, ranks: int) -> nn.Module:
    return model


def _tp(model: _Model, ranks: int) -> nn.Module:
    if ranks % 2 == 1:
        return model  # torch wants equal parts
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    model.twice = nn.Identity()
    return parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)


def _fsdp_tp(model: _Model, ranks: int) -> nn.Module:
    """What TP leaves alone has copies that its DTensors do not tell of."""
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"first": ColwiseParallel(output_layouts=Replicate()), "last": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], plan)
    for layer in (model.first, model.twice, model.last):
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def _in_parallel(rank: int, ranks: int) -> None:
    ways = [
        (_fsdp, {}, False, True),
        (_hsdp, {}, False, True),
        (_plain, {"grad_sync": True}, False, True),
        (_tp, {}, False, ranks % 2 == 0),
        (_ddp, {}, False, False),
        (_ddp, {}, True, True),
    ]
    # And which begin early: those whose gradients are whole when backward says they are there.
    for parallel, options, hooks, starts in ways if ranks < 4 else [(_fsdp_tp, {"waves": 8}, False, True)]:
        part = {_tp: (0, 1), _fsdp_tp: (rank // 2, 2)}.get(parallel, (rank, ranks))
        trained, optimizers, early = [], [], []
        for overlap in (True, False):
            model = parallel(_Model(seconds=0.04 if overlap else 0.0), ranks)
            optimizer = _optimizer(model, overlap=overlap, **options)
            if hooks:
                model.register_comm_hook(optimizer, muster.torch.ddp_hook)
            early.append(max(_train(model, optimizer, range(5), *part)))
            trained.append(model)
            optimizers.append(optimizer)
        assert _same(*trained), parallel.__name__
        assert (early[0] > 0) == starts, (parallel.__name__, hooks, early)
        assert early[1] == 0
        if parallel is _fsdp_tp:  # those that can begin early come first
            order = [optimizers[0].names[number] for number in optimizers[0]._overlap.order]
            assert order[:2] == ["last.weight", "first.weight"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_step_in_backward_give_the_same_bits(ranks: int) -> None:
    run_ranks(ranks, _in_parallel)


def _unlike(rank: int, ranks: int) -> None:
    """Each rank uses other parameters, in another order, and some none."""
    models = [[nn.Parameter(torch.eye(6) + i) for i in range(6)] for _ in range(2)]
    for weights, overlap in zip(models, (True, False)):
        named = [(f"w{i}", w) for i, w in enumerate(weights)]
        optimizer = muster.torch.NorMuon(named, grad_sync=True, waves=4, overlap=overlap)
        for step in range(5):
            optimizer.zero_grad()
            mine = [w for i, w in enumerate(weights) if (i + step) % 4 != rank]
            y = torch.arange(36.0).reshape(6, 6).sin()
            for w in mine if rank == 0 else mine[::-1]:
                y = _Slow.apply(y @ w, 0.005)
            y.square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(*models))
    assert not torch.equal(models[0][0], torch.eye(6))


def test_ranks_may_go_different_ways() -> None:
    run_ranks(2, _unlike)


def _refused_by_one(rank: int, ranks: int) -> None:
    model = _Model(seconds=0.01)
    optimizer = _optimizer(model, overlap=True, grad_sync=True, timeout=timedelta(seconds=20))
    _train(model, optimizer, range(2), rank, ranks)
    optimizer.zero_grad()
    _loss(model, 2, rank, ranks).backward()
    if rank == 1:
        _clip(model, optimizer)
    with pytest.raises(ValueError, match="(rank 1: )?overlap=True: the gradient of .* was changed after backward"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(muster.CommError, match="step 3 broke off"):
        optimizer.step()


def test_every_rank_hears_what_one_did_after_backward() -> None:
    run_ranks(2, _refused_by_one)


def _late(rank: int, ranks: int) -> None:
    model = _Model(seconds=0.01)
    optimizer = _optimizer(model, overlap=True, grad_sync=True, timeout=timedelta(seconds=2))
    _train(model, optimizer, range(2), rank, ranks)
    optimizer.zero_grad()
    if rank == 0:
        with pytest.raises(muster.CommError, match="step 3 broke off"):
            _loss(model, 2, rank, ranks).backward()
            optimizer.step()
        with pytest.raises(muster.CommError, match="step 3 broke off"):
            optimizer.step()
    else:
        time.sleep(5)


def test_a_rank_that_does_not_come_is_an_error_in_time() -> None:
    run_ranks(2, _late)
