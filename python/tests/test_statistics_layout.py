"""Statistics of NorMuon in opt.state: DTensors that say where the engine's lines are, for every kind of layout."""

from __future__ import annotations

import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import muster.torch

CASES = {
    "rows twice": ((12, 10), [Shard(0), Shard(0)], {}),
    "rows and columns": ((12, 10), [Shard(0), Shard(1)], {}),
    "columns and uneven rows": ((5, 12), [Shard(1), Shard(0)], {}),
    "replicas": ((9, 7), [Replicate(), Shard(0)], {}),
    # All elements are on one rank, but the lines are on four.
    "a single row": ((1, 12), [Shard(0), Shard(0)], {}),
    "uneven stack": ((5, 6, 4), [Shard(0), Replicate()], {}),
    "stack and rows": ((5, 6, 4), [Shard(0), Shard(1)], {}),
    "columns and stack": ((4, 6, 8), [Shard(2), Shard(0)], {}),
    "stack twice": ((7, 6, 4), [Shard(0), Shard(0)], {}),
    "heads": ((12, 10), [Shard(0), Shard(1)], {"heads": 3}),
    "blocks": ((12, 10), [Shard(1), Shard(0)], {"split_rows": [4, 8], "normalize": "columns"}),
    "view": ((8, 12), [Shard(0), Shard(0)], {"view": (4, 4, 6)}),
    "whole": ((8, 12), [Replicate(), Replicate()], {}),
}


def _check(optimizer: muster.torch.NorMuon) -> None:
    """Every entry, put together by torch, is what the engine exports by its own map of elements."""
    assert optimizer._built is not None
    engine = optimizer._built.engine
    for name, parameter in zip(optimizer._built.names, optimizer._built.tensors):
        for entry in ("momentum", "variance"):
            value = optimizer.state[parameter][entry]
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            expected = torch.frombuffer(bytearray(engine.export_state(f"{name}:{entry}")[2]), dtype=torch.float32)
            assert len(expected.unique()) > 3  # so that a wrong place shows
            assert torch.equal(whole.flatten(), expected), (name, entry, value)


def _distributed(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    random = torch.Generator().manual_seed(1)
    groups = [
        {
            "params": [(name, nn.Parameter(distribute_tensor(torch.randn(shape, generator=random), mesh, placements)))],
            **options,
        }
        for name, (shape, placements, options) in CASES.items()
    ]
    optimizer = muster.torch.NorMuon(groups)
    for _ in range(2):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = distribute_tensor(torch.randn(p.shape, generator=random), mesh, p.placements)
        optimizer.step()
    _check(optimizer)


def test_dtensors_describe_where_statistics_are() -> None:
    run_ranks(4, _distributed)


class _Experts(nn.Module):
    """A stack cut over experts by one axis; FSDP2 then cuts what each rank has along the same dimension."""

    def __init__(self, mesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(8, 4, 6), mesh, [Shard(0)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.to_local() ** 2 * x).sum()


def _strided(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    torch.manual_seed(0)
    experts = _Experts(mesh["tp"])
    dense = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    parallelize_module(dense, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for module in (experts, dense):
        fully_shard(module, mesh=mesh["fsdp"])
    optimizer = muster.torch.NorMuon([*experts.named_parameters(), *dense.named_parameters()])
    for step in range(2):
        (experts(torch.tensor(1.0 + step)) + (dense(torch.randn(4, 8)) ** 2).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    _check(optimizer)


def test_fsdp2_over_another_axis_of_the_same_dimension() -> None:
    run_ranks(4, _strided)
