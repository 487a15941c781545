"""accelerate with FSDP2: `prepare` replaces the tensors of the param groups after the optimizer was made."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from launch import as_torchrun
from ranks import run_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

import muster.torch


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 8), nn.Linear(8, 13))


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return muster.torch.NorMuon(muster.torch.param_groups(model, adamw_lr=0.01, verbose=False), lr=0.02)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Losses over all ranks; each rank has its part of the batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in steps:
        tokens = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def _plain(steps: range) -> list[float]:
    model = _model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return _train(model, _optimizer(model), steps)


def _accelerator(
    rank: int, ranks: int, *, rank_0_has_weights: bool = False, form: str = "SHARDED_STATE_DICT"
) -> Accelerator:
    as_torchrun(rank, ranks)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Linear"],
        cpu_ram_efficient_loading=rank_0_has_weights,
        state_dict_type=form,
    )
    # accelerate takes DDP on the CPU, whatever the plugin; FSDP2 itself runs there.
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    with mock.patch.object(PartialState, "_prepare_backend", lambda *_: ("gloo", DistributedType.MULTI_GPU)):
        accelerator = Accelerator(fsdp_plugin=plugin)
    assert accelerator.is_fsdp2
    return accelerator


def _prepared(accelerator: Accelerator, *, rank_0_has_weights: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _model()
    if rank_0_has_weights and not accelerator.is_main_process:
        for parameter in model.parameters():  # what transformers leaves there is not initialized
            nn.init.constant_(parameter, float("nan"))
    return accelerator.prepare(model, _optimizer(model))


def _trains(rank: int, ranks: int, rank_0_has_weights: bool) -> tuple[list[float], list[float]]:
    accelerator = _accelerator(rank, ranks, rank_0_has_weights=rank_0_has_weights)
    prepared = _prepared(accelerator, rank_0_has_weights=rank_0_has_weights)
    return _train(*prepared, range(30)), _plain(range(30))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rank_0_has_weights", [False, True])
def test_a_prepared_optimizer_trains_as_with_fsdp2_alone(ranks: int, rank_0_has_weights: bool) -> None:
    for prepared, plain in run_ranks(ranks, _trains, rank_0_has_weights):
        assert prepared == plain
        assert prepared[-1] < 0.6 * prepared[0]


def _continues(rank: int, ranks: int, folder: str, form: str) -> tuple[list[float], list[float]]:
    """A run that saves; a second one, with other weights, that loads what the first one saved."""
    accelerator = _accelerator(rank, ranks, form=form)
    model, optimizer = _prepared(accelerator, rank_0_has_weights=False)
    _train(model, optimizer, range(5))
    accelerator.save_state(folder)
    uninterrupted = _train(model, optimizer, range(5, 15))

    accelerator.free_memory()
    model, optimizer = _prepared(accelerator, rank_0_has_weights=False)
    _train(model, optimizer, range(100, 102))
    accelerator.load_state(folder)
    return _train(model, optimizer, range(5, 15)), uninterrupted


@pytest.mark.parametrize("form", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_what_save_state_wrote_load_state_continues(tmp_path: Path, form: str) -> None:
    for resumed, uninterrupted in run_ranks(2, _continues, str(tmp_path), form):
        assert resumed == uninterrupted
        assert resumed[-1] < resumed[0]


def _logs(rank: int, ranks: int) -> list[int]:
    model, optimizer = _prepared(_accelerator(rank, ranks), rank_0_has_weights=False)
    optimizer.optimizer.monitor_every = 2
    steps: list[int] = []
    for step in range(1, 5):
        _train(model, optimizer, range(step, step + 1))
        optimizer.optimizer.log_stats(lambda values, at: steps.append(at), step)
    return steps


def test_statistics_are_those_of_the_wrapped_optimizer() -> None:
    assert run_ranks(2, _logs) == [[2, 4], [2, 4]]
