"""Experts that an expert-parallel rank owns alone, declared with ``rank_local``.

They were refused with advice that went in a circle, or, where they started from equal weights, taken for replicas of
each other: an update error of 1.0 to 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from dion_reference import orthogonalize
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

import muster.torch
from muster.torch.layout import AxisPlacement, TensorLayout, local, local_shape, merge, read_layout

STEPS = 6
LR, DECAY, MU, BETA2 = 0.02, 0.1, 0.95, 0.95
SHAPES = {"w1": (8, 6), "w2": (6, 13)}  # of one expert: taller than wide, and the reverse


def _values(name: str, experts: int, step: int) -> torch.Tensor:
    """A stack of all experts' gradients, or of their weights before the first step; the same on every rank."""
    generator = torch.Generator().manual_seed(100 * step + sum(map(ord, name)))
    return torch.randn(experts, *SHAPES[name], generator=generator)


class Experts(nn.Module):
    """One rank's experts. The gradient of its output is what it is given."""

    def __init__(self, stacks: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, stack in stacks.items():
            setattr(self, name, nn.Parameter(stack.clone()))

    def forward(self, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return (self.w1 * w1).sum() + (self.w2 * w2).sum()


class Reference:
    """Muon or NorMuon of one expert, in float64."""

    def __init__(self, weight: torch.Tensor, normuon: bool) -> None:
        self.weight = weight.double()
        self.momentum = torch.zeros_like(self.weight)
        self.rows_longer = weight.shape[0] >= weight.shape[1]
        self.mean_squares = torch.zeros(max(weight.shape), 1, dtype=torch.float64)
        self.normuon = normuon

    def step(self, gradient: torch.Tensor) -> None:
        g = gradient.double()
        self.momentum = MU * self.momentum + (1 - MU) * g
        o = orthogonalize((1 - MU) * g + MU * self.momentum)
        if self.normuon:
            lines = o if self.rows_longer else o.T
            self.mean_squares = BETA2 * self.mean_squares + (1 - BETA2) * lines.square().mean(1, keepdim=True)
            scaled = lines / (self.mean_squares.sqrt() + 1e-8)
            scaled *= lines.norm() / scaled.norm()
            o = scaled if self.rows_longer else scaled.T
        rows, columns = o.shape
        self.weight -= LR * DECAY * self.weight + LR * math.sqrt(max(1.0, rows / columns)) * o


def _own_group(rank: int, ranks: int) -> dist.ProcessGroup:
    return [dist.new_group([r]) for r in range(ranks)][rank]


def _optimizer(algorithm: str, groups: Any, **options: Any) -> muster.torch.NorMuon:
    return muster.torch.NorMuon(groups, lr=LR, weight_decay=DECAY, algorithm=algorithm, wire="f32", **options)


def _offset(sizes: Sequence[int], coordinate: int) -> slice:
    begin = sum(sizes[:coordinate])
    return slice(begin, begin + sizes[coordinate])


def _part_of_slice(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What FSDP2 gives this rank of a stack of its experts."""
    if not isinstance(parameter, DTensor):
        return whole
    (placement,) = parameter.placements
    chunks = whole.chunk(parameter.device_mesh.size(), placement.dim)
    rank = parameter.device_mesh.get_local_rank()
    empty = whole.narrow(placement.dim, 0, 0)
    return chunks[rank] if rank < len(chunks) else empty


def _flow(
    single: dist.ProcessGroup,
    mesh: DeviceMesh,
    sizes: Sequence[int],
    algorithm: str,
    *,
    shard_dim: int | None = 0,
    zeros: bool = False,
    **options: Any,
) -> None:
    """Trains rank-local experts through FSDP2 (unless shard_dim is None), and compares with both references."""
    total = sum(sizes)
    mine = _offset(sizes, mesh["ep"].get_local_rank())
    start = {name: _values(name, total, 0) * (not zeros) for name in SHAPES}
    model = Experts({name: stack[mine] for name, stack in start.items()})
    if shard_dim is not None:
        fully_shard(model, mesh=mesh["fsdp"], shard_placement_fn=lambda p: Shard(shard_dim))
    group = {"params": list(model.named_parameters()), "rank_local": mesh["ep"]}
    optimizer = _optimizer(algorithm, [group], **options)

    alone = Experts(start)
    whole = _optimizer(algorithm, list(alone.named_parameters()), process_group=single)
    experts = {name: [Reference(w, algorithm == "normuon") for w in stack] for name, stack in start.items()}
    for step in range(1, STEPS + 1):
        gradients = {name: _values(name, total, step) for name in SHAPES}
        model.zero_grad()
        model(**{name: gradient[mine] for name, gradient in gradients.items()}).backward()
        optimizer.step()
        for name, parameter in alone.named_parameters():
            parameter.grad = gradients[name]
            for expert, gradient in zip(experts[name], gradients[name]):
                expert.step(gradient)
        whole.step()

    what = f"{algorithm} {sizes} on {mesh}, sharded along {shard_dim}"
    for name, parameter in model.named_parameters():
        ours = local(parameter.detach())
        theirs = _part_of_slice(getattr(alone, name).detach()[mine], parameter)
        assert torch.equal(ours, theirs), f"{what}: {name} differs from one process with the whole stack"
        exact = torch.stack([expert.weight for expert in experts[name]])[mine]
        # Six roundings of weights of up to 4 (2^-23 each), and those of updates of 0.02 that Newton-Schulz enlarges.
        # Experts taken for replicas are off by 0.02 and more.
        torch.testing.assert_close(ours.double(), _part_of_slice(exact, parameter), rtol=0, atol=4e-6)


def _experts_on_meshes(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    square = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("ep", "fsdp"))
    for algorithm in ("normuon", "muon"):
        for sizes in (3, 3), (3, 2):
            _flow(single, square, sizes, algorithm)
            _flow(single, square, sizes, algorithm, shard_dim=1)
    _flow(single, square, (3, 2), "normuon", shard_dim=None)
    _flow(single, square, (4, 1), "normuon")  # of one expert some FSDP ranks have nothing
    _flow(single, square, (3, 2), "normuon", overlap=True)
    _flow(single, square, (3, 2), "normuon", zeros=True)  # the replica check cannot tell them apart
    if ranks == 4:
        inner = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "ep"))
        _flow(single, inner, (3, 2), "normuon")
        replicas = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "ep", "fsdp"))
        _flow(single, replicas, (1, 4), "normuon")


@pytest.mark.parametrize("ranks", [2, 4])
def test_rank_local_experts_under_fsdp2_follow_a_float64_reference_per_expert(ranks: int) -> None:
    run_ranks(ranks, _experts_on_meshes)


def _plain_experts(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    line = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
    for algorithm in ("normuon", "muon"):
        _flow(single, line, (2, 2, 1, 1), algorithm, shard_dim=None)
        _flow(single, line, (2, 2, 1, 1), algorithm, shard_dim=None, zeros=True)
    _flow(single, line, (0, 3, 0, 2), "normuon", shard_dim=None)
    _flow(single, line, (2, 2, 1, 1), "normuon", shard_dim=None, overlap=True)


def test_unequal_numbers_of_plain_experts_follow_a_float64_reference_per_expert() -> None:
    run_ranks(4, _plain_experts)


def _wrapped(mesh: DeviceMesh, sizes: Sequence[int]) -> nn.Module:
    mine = _offset(sizes, mesh["ep"].get_local_rank())
    model = Experts({name: _values(name, sum(sizes), 0)[mine] for name in SHAPES})
    fully_shard(model, mesh=mesh["fsdp"])
    return model


def _mixed_with_other_parameters(rank: int, ranks: int, folder: str) -> None:
    """Expert biases to AdamW, a replicated router, a state_dict in the middle, and a checkpoint of whole stacks."""
    single = _own_group(rank, ranks)
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("ep", "fsdp"))
    sizes = (3, 2)
    mine = _offset(sizes, mesh["ep"].get_local_rank())

    def groups(experts: torch.Tensor, bias: torch.Tensor, router: torch.Tensor, **where: Any) -> list[dict[str, Any]]:
        return [
            {"params": [("experts", experts)], **where},
            {"params": [("bias", bias)], "algorithm": "adamw", **where},
            {"params": [("router", router)]},
        ]

    starts = [_values("w1", 5, 0), torch.ones(5, 4), torch.eye(4)]
    whole = [nn.Parameter(start.clone()) for start in starts]
    parts = [nn.Parameter(starts[0][mine].clone()), nn.Parameter(starts[1][mine].clone()), nn.Parameter(starts[2])]
    reference = muster.torch.NorMuon(groups(*whole), process_group=single)
    optimizer = muster.torch.NorMuon(groups(*parts, rank_local=mesh["ep"]))
    for step in range(1, 7):
        for parameter, part in zip(whole, parts):
            parameter.grad = torch.sin(parameter.detach() * (3 + step) + 1)
            part.grad = (parameter.grad if len(parameter) == 4 else parameter.grad[mine]).clone()
        reference.step()
        optimizer.step()
        if step == 3:
            state = optimizer.state_dict()
            optimizer = muster.torch.NorMuon(groups(*parts, rank_local=mesh["ep"]))
            optimizer.load_state_dict(state)
    assert torch.equal(parts[0], whole[0][mine])
    assert torch.equal(parts[1], whole[1][mine])
    assert torch.equal(parts[2], whole[2])

    optimizer.save(folder)
    loaded = [nn.Parameter(torch.zeros_like(start)) for start in starts]
    muster.torch.NorMuon(groups(*loaded), process_group=single).load(folder)
    for read, parameter in zip(loaded, whole):
        assert torch.equal(read, parameter)


def test_rank_local_parameters_train_with_others_and_resume(tmp_path: Path) -> None:
    run_ranks(4, _mixed_with_other_parameters, str(tmp_path / "checkpoint"))


def _separate_matrices(rank: int, ranks: int) -> None:
    """One module per expert: its name is the same on all ranks, its matrix is not."""
    single = _own_group(rank, ranks)
    line = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
    mine = nn.Parameter(_values("w1", ranks, 0)[rank])
    group = {"params": [("experts.0.weight", mine)], "rank_local": line}
    refusal = r"'experts.0.weight': rank_local joins the rows \[8, 8\].*split_rows=\[8, 8\].*heads=1"
    with pytest.raises(ValueError, match=refusal):
        muster.torch.NorMuon([group]).plan(verbose=False)
    own = nn.Parameter(mine.detach().clone())
    reference = muster.torch.NorMuon([own], process_group=single)
    optimizer = muster.torch.NorMuon([{**group, "split_rows": [8, 8]}])
    for step in range(1, 4):
        own.grad = _values("w1", ranks, step)[rank]
        mine.grad = own.grad.clone()
        reference.step()
        optimizer.step()
    assert torch.equal(mine, own)


def test_a_matrix_per_rank_says_how_its_rows_are_cut() -> None:
    run_ranks(2, _separate_matrices)


def _undeclared(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("ep", "fsdp"))
    exact = '{"params": [("%s", ...)], "rank_local": mesh["ep"]}'
    for sizes, problem in ((3, 3), "replicas start from different weights"), ((3, 2), "ranks disagree on its shape"):
        wrapped = _wrapped(mesh, sizes)
        mine = _offset(sizes, mesh["ep"].get_local_rank())
        plain = nn.Parameter(_values("w1", sum(sizes), 0)[mine])
        for parameters in list(wrapped.named_parameters()), [("experts.w1", plain)]:
            with pytest.raises(ValueError, match=problem) as caught:
                muster.torch.NorMuon(parameters).plan(verbose=False)
            assert exact % parameters[0][0] in str(caught.value)
            assert f"'{parameters[0][0]}'" in str(caught.value)
            assert "\n" not in str(caught.value)
            # The declaration that it shows is taken.
            muster.torch.NorMuon([{"params": parameters, "rank_local": mesh["ep"]}])


def test_the_error_of_undeclared_experts_shows_the_declaration() -> None:
    run_ranks(4, _undeclared)


def _remedies(rank: int, ranks: int) -> None:
    from muster.torch.rank_local import with_remedies

    mesh = init_device_mesh("cpu", (1, ranks, 1), mesh_dim_names=("pp", "experts", "fsdp"))
    wrapped = nn.Linear(4, 4)
    fully_shard(wrapped, mesh=mesh["fsdp"])
    refused = muster.InvalidArgument("parameter 'weight': its replicas have different gradients on ranks 0 and 1")
    assert with_remedies(refused, dict(wrapped.named_parameters())) == str(refused)  # without a code
    refused.code, refused.parameter = muster.ErrorCode.replica_gradients_differ, "weight"
    found = with_remedies(refused, dict(wrapped.named_parameters()))
    assert found.startswith(str(refused))
    for remedy in '"rank_local": mesh["experts"]}', "DistributedDataParallel", "grad_sync=True", "process_group=":
        assert remedy in found
    assert with_remedies(ValueError("another error"), {}) == "another error"


def test_remedies_for_different_gradients_name_the_axis() -> None:
    run_ranks(2, _remedies)


def _bad_declarations(rank: int, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "fsdp"))
    line = init_device_mesh("cpu", (4,))
    first = DeviceMesh("cpu", [0, 1])
    pair = dist.new_group([0, 1])
    plain = nn.Parameter(torch.ones(2, 4, 3))
    spread = nn.Parameter(DTensor.from_local(torch.ones(2, 4, 3), mesh, [Replicate(), Shard(0)], run_check=False))
    cases: list[tuple[torch.Tensor, Any, str]] = [
        (plain, "ep", "rank_local 'ep': expected a DeviceMesh of one dimension"),
        (plain, torch.ones(2, 2), r"rank_local tensor\(\[\[1., 1.\], \[1., 1.\]\]\): expected a DeviceMesh of one"),
        (plain, mesh, r"rank_local DeviceMesh.*ep=2, fsdp=2.*: expected a DeviceMesh of one dimension"),
        (plain, first, r"rank [23] is not in rank_local DeviceMesh.*which has ranks \[0, 1\]"),
        (nn.Parameter(torch.ones(2, 4, 3 + rank)), line, r"beyond dimension 0: \(4, 3\) on rank 0, \(4, 4\) on rank 1"),
        (nn.Parameter(torch.ones(1 + rank, 4, 3)), mesh["ep"], r"part 0 of rank_local axis 'ep'.*have sizes \[1, 2\]"),
        (spread, mesh["ep"], r"its own mesh has ranks \[0, 1, 2, 3\], rank_local .* has \[., .\]"),
        (plain, None if rank == 1 else mesh["ep"], r"ranks disagree on its rank_local: axis 'ep' of 2 ranks on rank 0"),
    ]
    for parameter, declared, problem in cases:
        with pytest.raises(ValueError, match=f"parameter 'experts': .*{problem}") as caught:
            muster.torch.NorMuon([{"params": [("experts", parameter)], "rank_local": declared}]).plan(verbose=False)
        assert "\n" not in str(caught.value)
    if rank < 2:
        with pytest.raises(ValueError, match=r"'experts': rank_local .* has ranks .*, the process group has \[0, 1\]"):
            group = {"params": [("experts", plain)], "rank_local": line}
            muster.torch.NorMuon([group], process_group=pair).plan(verbose=False)


def test_a_bad_declaration_is_one_line_on_every_rank() -> None:
    run_ranks(4, _bad_declarations)


def _layouts(rank: int, ranks: int) -> None:
    """The merged layout says what each rank has, uneven FSDP shards included."""
    from muster.torch.rank_local import Declared

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "fsdp"))
    parameter = _wrapped(mesh, (3, 2)).w1
    views: list[Any] = [None] * ranks
    dist.all_gather_object(views, read_layout("w1", parameter, dist.group.WORLD, Declared(rank_local=mesh["ep"])))
    merged = merge(views)
    assert merged.shape == (5, 8, 6)
    assert merged.axes == (("ep", 2), ("fsdp", 2))
    assert merged.placements[0].sizes == (3, 2)
    assert [local_shape(merged, r)[0] for r in range(ranks)] == [2, 1, 1, 1]
    assert local_shape(merged, rank) == tuple(local(parameter).shape)


def test_a_merged_layout_has_the_sizes_of_all_ranks() -> None:
    run_ranks(4, _layouts)


def test_parts_are_cut_before_the_axes_of_their_slices() -> None:
    """FSDP2 over TP in each part, "tp first": of 3 rows the TP ranks have 2 and 1, and FSDP cuts each."""
    from muster.torch.rank_local import Part

    placements, axes = (AxisPlacement(0), AxisPlacement(0)), (("fsdp", 2), ("tp", 2))
    views = []
    for rank in range(8):  # ep=2, fsdp=2, tp=2
        ep = rank // 4
        slice_ranks = tuple(range(4 * ep, 4 * ep + 4))
        part = Part("ep", 2, ep)
        views.append(TensorLayout("w", (3 - ep, 5), "f32", axes, slice_ranks, placements, (1, 0), part))
    merged = merge(views)
    assert merged.order == (0, 2, 1)
    assert [local_shape(merged, rank)[0] for rank in range(8)] == [1, 1, 1, 0, 1, 1, 0, 0]


def _saved_by_name(rank: int, ranks: int) -> None:
    """torch.distributed.checkpoint keeps one tensor per name, so one rank loaded the momentum of another."""
    experts = nn.Parameter(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(rank)))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
    optimizer = muster.torch.NorMuon([{"params": [("experts", experts)], "rank_local": mesh["ep"]}])
    experts.grad = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(10 + rank))
    optimizer.step()
    with pytest.warns(UserWarning, match="'experts' is rank-local.*one tensor per name.*opt.save"):
        optimizer.state_dict()


def test_a_checkpoint_by_name_of_rank_local_parameters_is_warned_of() -> None:
    run_ranks(2, _saved_by_name)
