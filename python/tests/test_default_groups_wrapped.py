"""Default groups of models that are sharded, wrapped or compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from chosen_groups import Experts, Mlp, Moe
from ranks import run_ranks
from test_default_groups import _Bare
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster.torch
from muster.torch.default_groups import decisions
from muster.torch.groups import bare_name


def _many_kinds() -> nn.Module:
    torch.manual_seed(0)
    model = Mlp()
    model.moe = Moe(nn.Linear(8, 4), Experts())
    model.attention, model.norm = nn.MultiheadAttention(8, 2), nn.LayerNorm(8)
    model.convolution, model.bare = nn.Conv1d(8, 8, 3), _Bare()
    model.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 6))
    return model


def _rules(model: nn.Module) -> list[tuple[list[str], Any]]:
    return [([bare_name(name) for name in names], decision) for names, _, decision in decisions(model)]


def _same_when_sharded(rank: int, ranks: int) -> None:
    expected = _rules(_many_kinds())
    mesh = init_device_mesh("cpu", (ranks,))
    sharded = _many_kinds()
    for layer in list(sharded.children()):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    assert type(sharded.up).__name__ == "FSDPLinear"
    assert _rules(sharded) == expected
    assert _rules(DistributedDataParallel(_many_kinds())) == expected
    assert _rules(torch.compile(DistributedDataParallel(_many_kinds()))) == expected  # type: ignore[arg-type]
    assert dist.get_rank() == rank


def test_a_sharded_or_ddp_model_is_decided_as_the_plain_one() -> None:
    run_ranks(2, _same_when_sharded)


def _printed_by_rank_0(rank: int, ranks: int) -> None:
    printed: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *words, **_: printed.append(words))
        muster.torch.param_groups(Mlp())
    assert len(printed) == (1 if rank == 0 else 0)


def test_only_rank_0_prints() -> None:
    run_ranks(2, _printed_by_rank_0)


def test_a_compiled_model_is_decided_as_the_plain_one() -> None:
    expected = _rules(_many_kinds())
    assert _rules(torch.compile(_many_kinds())) == expected  # type: ignore[arg-type]
    model = _many_kinds()
    model.score = torch.compile(model.score)  # type: ignore[assignment]
    assert _rules(model) == expected


def test_fsdp1_is_an_error_that_names_fsdp2() -> None:
    class FullyShardedDataParallel(nn.Module):
        __module__ = "torch.distributed.fsdp"

        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(torch.zeros(100))

    with pytest.raises(ValueError, match=r"\(FSDP1\) cuts parameters into flat pieces.*fully_shard"):
        muster.torch.param_groups(FullyShardedDataParallel())
