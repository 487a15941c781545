"""Replicas are proved: weights when a plan is made, gradients in the first steps, step counts in every step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster.torch


def _zeros_as_experts(rank: int, ranks: int) -> None:
    """Experts local to a rank that start from zeros: as weights they are equal, so they passed for replicas."""
    experts = nn.Parameter(torch.zeros(2, 6, 4))
    optimizer = muster.torch.NorMuon([("experts", experts)])
    experts.grad = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(rank))
    with pytest.raises(ValueError) as refused:
        optimizer.step()
    ranks_named = "those of rank 1 are not those of rank 0"
    for part in ("'experts'", ranks_named, "rank_local", "DistributedDataParallel", "grad_sync"):
        assert part in str(refused.value), refused.value
    assert not experts.any()  # nothing has changed


def test_undeclared_experts_that_start_from_zeros_are_an_error() -> None:
    run_ranks(2, _zeros_as_experts)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def _zeros_under_fsdp(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "fsdp"))
    experts = _Experts()
    fully_shard(experts, mesh=mesh["fsdp"])
    optimizer = muster.torch.NorMuon(experts.named_parameters())
    x = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(mesh.get_local_rank("ep")))
    experts(x).backward()
    with pytest.raises(ValueError, match="'weight': its replicas have different gradients.*mesh\\[\"ep\"\\]"):
        optimizer.step()


def test_undeclared_experts_under_fsdp2_are_an_error_that_names_the_axis() -> None:
    run_ranks(4, _zeros_under_fsdp)


def _averaged(rank: int, ranks: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 6))
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    for _ in range(5):
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_gradients_that_ddp_averages_are_the_same_to_the_bit() -> None:
    run_ranks(3, _averaged)


def _forgotten_average(rank: int, ranks: int) -> None:
    """A model without DDP: each rank has its own gradients."""
    torch.manual_seed(0)
    model = nn.Linear(8, 6)
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))).square().sum().backward()
    with pytest.raises(ValueError, match="its replicas have different gradients: those of ranks 1, 2 are not"):
        optimizer.step()


def test_gradients_that_were_not_averaged_are_an_error() -> None:
    run_ranks(3, _forgotten_average)


def _different_checkpoints(rank: int, ranks: int) -> None:
    weight = nn.Parameter(torch.ones(6, 4))
    optimizer = muster.torch.NorMuon([("w", weight)])
    saved = []
    for _ in range(2):
        weight.grad = torch.ones(6, 4)
        optimizer.step()
        saved.append({**optimizer.state_dict()})
        saved[-1]["state"] = {0: {entry: value.clone() for entry, value in saved[-1]["state"][0].items()}}
    dist.barrier()
    optimizer.load_state_dict(saved[0 if rank == 2 else 1])
    with pytest.raises(ValueError, match="number of steps done: 2 on ranks 0, 1; 1 on rank 2; load the same state"):
        optimizer.step()


def test_ranks_that_loaded_different_checkpoints_are_named() -> None:
    run_ranks(3, _different_checkpoints)
