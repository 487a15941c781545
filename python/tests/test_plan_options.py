"""Options of the planner: they never change the bits of a step, and a bad one is named before anything changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import muster.torch
from muster.torch import PlanOptions

#: A table with which the planner decides otherwise than with the built-in one.
TABLE = {
    "device": "test", "rates": [[64, 50]], "batch_ns": 0, "exchange_ns": 0, "message_ns": 0, "memory_mbps": 1000,
    "intra_node_mbps": 100, "inter_node_mbps": 10, "ranks_per_node": 2, "compute_bytes": 4, "overlap_percent": 90,
}  # fmt: skip

GROUPED = PlanOptions(strategy="grouped", groups=[2, 3, 4])
CHOICES = [
    PlanOptions(waves=1),
    PlanOptions(waves=4, scratch_mib=0, wave_order="small_last"),
    PlanOptions(waves=3, elementwise="last"),
    PlanOptions(waves=3, elementwise="first"),
    PlanOptions(elementwise="interleaved", wave_order="small_first"),
    PlanOptions(waves=4, in_flight=2),
    PlanOptions(waves=5, in_flight="all"),
    PlanOptions(strategy="megabatch", in_flight=2),
    GROUPED,
    PlanOptions(strategy="grouped", groups=[9], mixed_groups=True),
]


def _table(folder: str, **changed: int) -> str:
    path = Path(folder) / f"cost{len(changed)}.json"
    path.write_text(json.dumps({**TABLE, **changed}))
    return str(path)


def _model() -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(12, 8)] * 3 + [(8, 8)] * 2 + [(6, 20)] * 4 + [(30,), (13, 7)]
    return [(f"p{i}", nn.Parameter(torch.randn(shape, generator=generator))) for i, shape in enumerate(shapes)]


def _groups(parameters: list) -> list[dict]:
    return [{"params": parameters[:9]}, {"params": parameters[9:], "algorithm": "adamw", "lr": 0.01}]


def _trained(parameters: list, options: PlanOptions | None, **more) -> tuple[list[torch.Tensor], dict]:
    optimizer = muster.torch.NorMuon(_groups(parameters), plan=options, **more)
    for step in range(3):
        for i, (_, p) in enumerate(parameters):
            p.grad = torch.sin(p.detach() * 5 + step + i)
        optimizer.step()
    whole = [p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach() for _, p in parameters]
    return [w.clone() for w in whole], optimizer.plan(verbose=False)


def _same_bits(rank: int, ranks: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    if rank == 0:
        _table(folder)
    dist.barrier()
    cost = f"{folder}/cost0.json"

    def sharded() -> list:
        return [(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))) for name, p in _model()]

    for make, more in ((sharded, {}), (_model, {"grad_sync": True})):
        expected, usual = _trained(make(), None, **more)
        for options in [*CHOICES, PlanOptions(cost=cost), PlanOptions(cost=Path(cost), waves=2)]:
            got, plan = _trained(make(), options, **more)
            assert all(torch.equal(a, b) for a, b in zip(got, expected)), options
            assert plan["strategy"] == options.strategy
            assert not options.waves or min(options.waves, 2) <= plan["waves"] <= options.waves
            assert options.in_flight is None or plan["in_flight"] == {2: 2, "all": plan["waves"] - 1}[options.in_flight]
            assert options.cost is None or plan["hash"] != usual["hash"]


def test_no_option_changes_the_bits(tmp_path: Path) -> None:
    run_ranks(3, _same_bits, str(tmp_path))


def _different_tables(rank: int, ranks: int, folder: str) -> None:
    cost = _table(folder, **({"message_ns": 7} if rank == 1 else {}))
    weight = nn.Parameter(torch.eye(6))
    optimizer = muster.torch.NorMuon([("w", weight)], plan=PlanOptions(cost=cost), grad_sync=True)
    weight.grad = torch.ones(6, 6)
    with pytest.raises(ValueError, match="same parameters, but other cost tables on rank 1 than on rank 0"):
        optimizer.step()
    assert torch.equal(weight, torch.eye(6))
    options = PlanOptions(elementwise="last" if rank == 2 else "first")
    optimizer = muster.torch.NorMuon([("w", weight)], plan=options, grad_sync=True)
    with pytest.raises(ValueError, match="same parameters, but other plan options on rank 2 than on rank 0"):
        optimizer.plan(verbose=False)


def test_ranks_with_different_tables_are_told_so(tmp_path: Path) -> None:
    run_ranks(3, _different_tables, str(tmp_path))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"strategy": "fastest"}, "strategy 'fastest' is none of global, "),
        ({"strategy": 3}, "strategy 3: expected a name"),
        ({"waves": -1}, "waves -1: expected a whole number from 0 to "),
        ({"waves": 1 << 40}, "waves 1099511627776: expected a whole number from 0 to "),
        ({"waves": 1.5}, r"waves 1\.5: expected a whole number"),
        ({"waves": 2, "strategy": "routed"}, "waves 2: is for strategy 'global', not 'routed'"),
        ({"in_flight": 0}, "in_flight 0: expected 1 to 1048576, or 'all'"),
        ({"in_flight": "some"}, "in_flight 'some': expected 1 to 1048576, or 'all'"),
        ({"scratch_mib": -1}, "scratch_mib -1: expected a whole number from 0 to "),
        ({"scratch_mib": 64, "strategy": "chunked"}, "scratch_mib 64: is for strategy 'global', not 'chunked'"),
        ({"groups": [1, 2]}, r"groups \[1, 2\]: is for strategy 'grouped', not 'global'"),
        ({"mixed_groups": True}, "mixed_groups True: is for strategy 'grouped', not 'global'"),
        ({"groups": [1, 0], "strategy": "grouped"}, r"groups \[1, 0\]: expected parameters per group"),
        ({"groups": "12", "strategy": "grouped"}, "groups '12': expected parameters per group"),
        ({"groups": 4, "strategy": "grouped"}, "groups 4: expected parameters per group"),
        ({"wave_order": "big_first"}, "wave_order 'big_first': expected one of small_first, small_last"),
        ({"wave_order": "small_last", "strategy": "chunked"}, "wave_order 'small_last': is for strategy 'global'"),
        ({"elementwise": "never"}, "elementwise 'never': expected one of first, interleaved, last"),
        ({"cost": "no/such.json"}, "cost table 'no/such.json': neither h200, cpu nor a file"),
        ({"cost": 7}, "cost 7: expected 'cpu', 'h200' or the path"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    weight = nn.Parameter(torch.eye(4))
    with pytest.raises(ValueError, match=message) as raised:
        muster.torch.NorMuon([("w", weight)], plan=PlanOptions(**options))
    assert "\n" not in str(raised.value)


def test_an_option_is_given_once() -> None:
    weight = [("w", nn.Parameter(torch.eye(4)))]
    for given in ({"strategy": "global"}, {"waves": 0}, {"scratch_mib": 1024}):
        key, value = next(iter(given.items()))
        with pytest.raises(ValueError, match=f"{key} {value!r}: not next to plan="):
            muster.torch.NorMuon(weight, plan=PlanOptions(), **given)
    with pytest.raises(ValueError, match="plan 'global': expected muster.torch.PlanOptions"):
        muster.torch.NorMuon(weight, plan="global")
    with pytest.raises(ValueError, match="'plan' belongs to the optimizer as a whole"):
        muster.torch.NorMuon([{"params": weight, "plan": PlanOptions()}])
    alone = muster.torch.NorMuon(weight, strategy="megabatch")
    assert alone.plan(verbose=False)["strategy"] == "megabatch"
    assert copy.deepcopy(alone).plan(verbose=False)["strategy"] == "megabatch"


def test_groups_that_do_not_add_up_are_refused_in_the_first_step() -> None:
    parameters = _model()
    optimizer = muster.torch.NorMuon(_groups(parameters), plan=PlanOptions(strategy="grouped", groups=[2, 3]))
    before = [p.detach().clone() for _, p in parameters]
    for _, p in parameters:
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match=r"strategy grouped: groups \[2,3\] do not sum to the 9 matrix parameters"):
        optimizer.step()
    assert all(torch.equal(p, b) for (_, p), b in zip(parameters, before))


def test_overlap_has_orders_of_its_own() -> None:
    weight = [("w", nn.Parameter(torch.eye(4)))]
    with pytest.raises(ValueError, match="wave_order 'small_last': with overlap=True"):
        muster.torch.NorMuon(weight, overlap=True, plan=PlanOptions(wave_order="small_last"))
    with pytest.raises(ValueError, match="elementwise 'first': with overlap=True"):
        muster.torch.NorMuon(weight, overlap=True, plan=PlanOptions(elementwise="first"))
    muster.torch.NorMuon(weight, overlap=True, plan=PlanOptions(elementwise="last", waves=2))


def _step(parameters: list, **group) -> list[torch.Tensor]:
    optimizer = muster.torch.NorMuon([{"params": parameters, **group}])
    for step in range(3):
        for _, p in parameters:
            p.grad = torch.sin(p.detach() * 7 + step)
        optimizer.step()
    return [p.detach() for _, p in parameters]


@pytest.mark.parametrize("dim", [0, 1])
def test_each_block_has_its_own_side(dim: int) -> None:
    """The bits of parameters of their own, each with its side."""
    sizes, sides = [6, 6, 9], ["columns", "rows", "longer"]
    start = torch.randn(21, 6) if dim == 0 else torch.randn(6, 21)
    cut = {"split_rows" if dim == 0 else "split_columns": sizes, "normalize": sides}
    together = _step([("w", nn.Parameter(start.clone()))], **cut)[0].split(sizes, dim)
    one_side = _step([("w", nn.Parameter(start.clone()))], **{**cut, "normalize": "columns"})[0].split(sizes, dim)
    for block, other, piece, side in zip(together, one_side, start.split(sizes, dim), sides):
        alone = _step([("w", nn.Parameter(piece.contiguous().clone()))], normalize=side)[0]
        assert torch.equal(block, alone)
        assert torch.equal(other, block) == (side == "columns" or (side == "longer" and dim == 1))


def test_each_head_has_its_own_side() -> None:
    start = torch.randn(12, 6)
    heads = _step([("w", nn.Parameter(start.clone()))], heads=2, normalize=("columns", "rows"))
    rows = _step([("w", nn.Parameter(start.clone()))], split_rows=[6, 6], normalize=["columns", "rows"])
    assert torch.equal(heads[0], rows[0])


def test_sides_that_do_not_fit_the_blocks_are_named() -> None:
    def refused(message: str, **group) -> None:
        weight = nn.Parameter(torch.eye(4))
        with pytest.raises(ValueError, match=message):
            muster.torch.NorMuon([("w", weight)], **group).plan(verbose=False)

    refused("'w': normalize has 3 sides for 2 blocks", heads=2, normalize=["rows", "rows", "columns"])
    refused(r"'w': normalize \['rows'\]: one side per block, but neither heads", normalize=["rows"])
    refused(
        r"'w': normalize \['rows', 'rows'\]: one side per block, but rows and columns are both cut",
        heads=2, split_columns=[2, 2], normalize=["rows", "rows"],
    )  # fmt: skip
    refused("'w': normalize 'up': expected one of", heads=2, normalize=["rows", "up"])
