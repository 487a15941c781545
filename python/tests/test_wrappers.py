"""Wrappers that Muster cannot work under are refused on every rank, with the reason and what to use instead.

Before, these trained nothing, waited for the timeout, or named remedies that do not help.
"""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta
from types import ModuleType

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import muster
import muster.torch


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 13))


def _optimizer(model: nn.Module, **options: object) -> muster.torch.NorMuon:
    groups = muster.torch.param_groups(model, verbose=False)
    return muster.torch.NorMuon(groups, lr=0.02, timeout=timedelta(seconds=20), **options)


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        tokens = torch.arange(13)
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def _fsdp1(rank: int, ranks: int, use_orig_params: bool, optimizer_first: bool) -> str:
    model = _model()
    optimizer = _optimizer(model) if optimizer_first else None
    wrapped = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    with pytest.raises(ValueError) as raised:
        if optimizer is None:
            _optimizer(wrapped)
        else:
            _steps(wrapped, optimizer)
    return str(raised.value)


@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.parametrize("optimizer_first", [False, True])
def test_fsdp1_is_refused_in_favour_of_fsdp2(use_orig_params: bool, optimizer_first: bool) -> None:
    # Without use_orig_params, an optimizer made before the model was wrapped updated nothing, without a word.
    for message in run_ranks(2, _fsdp1, use_orig_params, optimizer_first):
        assert "FSDP1" in message and "fully_shard" in message and "\n" not in message


def _before_fully_shard(rank: int, ranks: int) -> list[str]:
    """The optimizer has the parameters that fully_shard replaces: nothing trains, and a warning says why."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
    opt = muster.torch.Muon([model[0].weight], lr=0.02)
    fully_shard(model)
    model(torch.ones(2, 6)).sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.step()
        opt.step()
    return [str(warning.message) for warning in caught]


def test_an_optimizer_made_before_fully_shard_is_warned_of_once() -> None:
    for messages in run_ranks(2, _before_fully_shard):
        assert sum("made before fully_shard" in message for message in messages) == 1


def _zero_redundancy(rank: int, ranks: int) -> str:
    # Equal shapes: to Muster, the matrices of rank 0 and rank 1 look like replicas of each other.
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
    with pytest.raises(ValueError) as raised:
        ZeroRedundancyOptimizer(model.parameters(), muster.torch.NorMuon, lr=0.02)
    return str(raised.value)


def test_zero_redundancy_optimizer_is_refused_in_favour_of_replicate_state() -> None:
    for message in run_ranks(2, _zero_redundancy):
        assert "ZeroRedundancyOptimizer" in message and "replicate_state=False" in message and "\n" not in message


def _other_parameters(rank: int, ranks: int) -> str:
    model = _model()
    groups = muster.torch.param_groups(model, verbose=False)
    optimizer = muster.torch.NorMuon(groups if rank == 0 else groups[:1], lr=0.02)
    with pytest.raises(ValueError) as raised:
        optimizer.plan()
    return str(raised.value)


def test_ranks_with_other_parameters_hear_of_the_usual_causes() -> None:
    for message in run_ranks(2, _other_parameters):
        assert "ZeroRedundancyOptimizer" in message and "process_group=" in message


def _joins(rank: int, ranks: int, steps_before: int) -> str:
    model = _model()
    parallel, optimizer = DistributedDataParallel(model), _optimizer(model)
    _steps(parallel, optimizer, steps_before)
    with pytest.raises(ValueError) as raised, parallel.join():
        _steps(parallel, optimizer, 2 + 2 * rank)
    return str(raised.value)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_join_context_is_refused_in_its_first_step(steps_before: int) -> None:
    # Before, rank 1 waited in its third step for rank 0, which had no inputs left, until the timeout.
    for message in run_ranks(2, _joins, steps_before):
        assert "join()" in message and "throw_on_early_termination=True" in message and "\n" not in message


def _throws(rank: int, ranks: int) -> tuple[str, int]:
    model, other = _model(), _model()
    parallel, optimizer = DistributedDataParallel(model), _optimizer(model)
    unrelated = DistributedDataParallel(other)  # may be in any join context
    with pytest.raises(RuntimeError) as raised, unrelated.join(), parallel.join(throw_on_early_termination=True):
        _steps(parallel, optimizer, 2 + 2 * rank)
    return str(raised.value), int(optimizer.state_dict()["state"][0]["steps"])


def test_a_join_context_that_throws_is_accepted() -> None:
    for message, steps in run_ranks(2, _throws):
        assert "exhausted" in message
        assert steps == 2


def _after_join(rank: int, ranks: int) -> int:
    model = _model()
    parallel, optimizer = DistributedDataParallel(model), _optimizer(model)
    with parallel.join():
        pass
    _steps(parallel, optimizer, 2)
    return int(optimizer.state_dict()["state"][0]["steps"])


def test_steps_after_a_join_context_are_accepted() -> None:
    assert run_ranks(2, _after_join) == [2, 2]


def _runs_out(rank: int, ranks: int) -> str:
    model = _model()
    groups = muster.torch.param_groups(model, verbose=False)
    optimizer = muster.torch.NorMuon(groups, lr=0.02, timeout=timedelta(seconds=2))
    _steps(model, optimizer, 2)
    if rank == 0:
        with pytest.raises(muster.CommError) as raised:
            _steps(model, optimizer)
        assert raised.value.code == muster.ErrorCode.rank_missing
        return str(raised.value)
    time.sleep(6)  # alive, and without another batch
    return ""


def test_a_missing_step_names_uneven_batches() -> None:
    message, _ = run_ranks(2, _runs_out)
    assert "rank 1 had not arrived" in message
    assert "the same number of steps" in message and "join()" in message


def test_parameters_of_deepspeed_zero_3_are_refused() -> None:
    model = _model()
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id = number  # as deepspeed.zero.Init does, beside ds_tensor, ds_status, ...
    with pytest.raises(ValueError, match="DeepSpeed ZeRO .* use FSDP2"):
        _optimizer(model)


def _deepspeed(rank: int, ranks: int) -> str:
    """As DeepSpeed's ZeRO stages 1, 2 and 3 do to an optimizer that they are given."""
    sys.modules["deepspeed"] = ModuleType("deepspeed")
    model = _model()
    optimizer = _optimizer(model)
    for group in optimizer.param_groups:
        flat = torch.cat([p.detach().flatten() for p in group["params"]]).chunk(ranks)[rank].clone()
        group["params"] = [flat.requires_grad_()]
        flat.grad = torch.zeros_like(flat)
    with pytest.raises(ValueError) as raised:
        optimizer.step()
    return str(raised.value)


def test_flat_pieces_of_deepspeed_zero_are_refused() -> None:
    for message in run_ranks(2, _deepspeed):
        assert "DeepSpeed ZeRO" in message and "FSDP2" in message and "\n" not in message
