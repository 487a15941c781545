"""opt.state: real tensors, which the engine computes on, and what users do with them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from layouts import Trained, alone, fsdp, hsdp
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import muster.torch
from muster.torch.communicator import Messages

GROUPS = {
    "normuon": {"momentum", "variance"},
    "muon": {"momentum"},
    "adamw": {"first", "second"},
    "lion": {"first"},
}
COUNTERS = {"updates", "steps", "seed"}


def _optimizer(dtype: torch.dtype = torch.float32, **options) -> tuple[list[nn.Parameter], muster.torch.NorMuon]:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(6, 4, generator=generator).to(dtype)) for _ in GROUPS]
    named = [{"params": [(a, w)], "algorithm": a} for a, w in zip(GROUPS, weights)]
    return weights, muster.torch.NorMuon(named, lr=0.05, **options)


def _steps(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.sin(weight.detach() * 5 + step)
        optimizer.step()


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [weight.detach() for group in optimizer.param_groups for weight in group["params"]]


def _same(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(_weights(a), _weights(b)))


def test_state_has_the_names_dtypes_and_shapes_that_the_docs_say() -> None:
    weights, optimizer = _optimizer()
    assert not optimizer.state
    _steps(optimizer, range(2))
    for (algorithm, names), weight in zip(GROUPS.items(), weights):
        entries = optimizer.state[weight]
        assert set(entries) == names | COUNTERS, algorithm
        assert all(entries[name].any() and entries[name].dtype == torch.float32 for name in names)
        assert all(entries[name].shape == weight.shape for name in names - {"variance"})
        assert [int(entries[name]) for name in ("updates", "steps", "seed")] == [2, 2, 0]
        assert all(entries[name].dtype == torch.int64 and entries[name].ndim == 0 for name in COUNTERS)
    assert optimizer.state[weights[0]]["variance"].shape == (6,)


@pytest.mark.parametrize(("form", "dtype"), [("master", torch.float32), ("mantissa", torch.uint16)])
def test_what_completes_bf16_weights_is_state(form: str, dtype: torch.dtype) -> None:
    weights, optimizer = _optimizer(torch.bfloat16, bf16_weights=form, momentum_dtype="bf16")
    _steps(optimizer, range(2))
    for weight in weights:
        assert optimizer.state[weight][form].dtype == dtype
    assert optimizer.state[weights[0]]["momentum"].dtype == torch.bfloat16
    assert optimizer.state[weights[2]]["first"].dtype == torch.float32
    if form == "master":
        assert torch.equal(optimizer.state[weights[0]][form].bfloat16(), weights[0])


def test_steps_and_loads_keep_the_memory() -> None:
    weights, optimizer = _optimizer()
    _steps(optimizer, range(1))
    before = {(w, name): t for w in weights for name, t in optimizer.state[w].items()}
    addresses = {key: tensor.data_ptr() for key, tensor in before.items()}
    assert len(before) == sum(len(names | COUNTERS) for names in GROUPS.values())
    saved = copy.deepcopy(optimizer.state_dict())
    _steps(optimizer, range(1, 3))
    optimizer.load_state_dict(saved)
    _steps(optimizer, range(1, 2))
    optimizer.add_param_group({"params": [("more", nn.Parameter(torch.ones(4, 4)))]})
    _steps(optimizer, range(2, 3))
    for (weight, name), tensor in before.items():
        if name != "updates":  # a view of one vector for all parameters
            assert optimizer.state[weight][name] is tensor and tensor.data_ptr() == addresses[weight, name]


def test_what_a_user_writes_into_state_counts() -> None:
    """In place, or as another tensor, which is copied."""
    (weights, optimizer), (_, reference) = _optimizer(), _optimizer()
    _steps(optimizer, range(2))
    _steps(reference, range(2))
    given = torch.arange(24.0).reshape(6, 4)
    mine = optimizer.state[weights[0]]["momentum"]
    optimizer.state[weights[0]]["momentum"] = given
    optimizer.state[weights[2]] = {name: tensor.clone() for name, tensor in optimizer.state[weights[2]].items()}
    optimizer.state[weights[1]]["ema"] = "what a user keeps there"
    twin = reference.param_groups[0]["params"][0]
    reference.state[twin]["momentum"].copy_(given)
    _steps(optimizer, range(2, 4))
    _steps(reference, range(2, 4))
    assert _same(optimizer, reference)
    assert optimizer.state[weights[0]]["momentum"] is mine
    assert torch.equal(given, torch.arange(24.0).reshape(6, 4))
    assert optimizer.state[weights[1]]["ema"] == "what a user keeps there"
    optimizer.state[weights[0]]["momentum"] = torch.ones(4, 6)
    before = copy.deepcopy(_weights(optimizer))
    with pytest.raises(ValueError, match=r"'normuon': momentum has shape \(4, 6\), expected \(6, 4\)"):
        _steps(optimizer, range(4, 5))
    assert all(torch.equal(a, b) for a, b in zip(before, _weights(optimizer)))
    optimizer.state[weights[0]]["momentum"] = mine
    _steps(optimizer, range(4, 5))


def test_a_cleared_state_starts_from_zero() -> None:
    weights, optimizer = _optimizer(bf16_weights="master", every=2)
    _steps(optimizer, range(3))
    optimizer.state.clear()
    fresh_weights, fresh = _optimizer(bf16_weights="master", every=2)
    for mine, theirs in zip(weights, fresh_weights):
        theirs.data.copy_(mine.data)
    _steps(optimizer, range(3, 6))
    _steps(fresh, range(3, 6))
    assert _same(optimizer, fresh)
    assert int(optimizer.state[weights[0]]["steps"]) == 3
    del optimizer.state[weights[0]]  # alone: the others go on
    _steps(optimizer, range(6, 8))
    assert [int(optimizer.state[weights[i]]["updates"]) for i in (0, 1)] == [1, 2]
    optimizer.state = {}
    _steps(optimizer, range(8, 9))
    assert int(optimizer.state[weights[0]]["steps"]) == 1


def _by_deepcopy(optimizer):
    return copy.deepcopy(optimizer)


def _by_pickle(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


def _by_torch(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [_by_deepcopy, _by_pickle, _by_torch])
@pytest.mark.parametrize("steps", [0, 3])
def test_an_optimizer_can_be_copied_and_pickled(duplicate, steps: int) -> None:
    _, optimizer = _optimizer(torch.bfloat16, bf16_weights="mantissa", seed=7, every=2)
    _steps(optimizer, range(steps))
    twin = duplicate(optimizer)
    assert {k for k in vars(twin) if k[0] != "_"} == {k for k in vars(optimizer) if k[0] != "_"}
    _steps(optimizer, range(steps, steps + 3))
    _steps(twin, range(steps, steps + 3))
    assert _same(optimizer, twin)
    mine, theirs = (o.state_dict()["state"][0] for o in (optimizer, twin))
    assert int(theirs["steps"]) == steps + 3 and int(theirs["seed"]) == 7
    assert mine["momentum"].data_ptr() != theirs["momentum"].data_ptr()


def test_an_optimizer_that_begins_in_backward_can_be_copied() -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    optimizer = muster.torch.Muon(list(model.parameters()), overlap=True, waves=2)
    pair = copy.deepcopy((model, optimizer))
    for each, its in ((model, optimizer), pair):
        for _ in range(3):
            its.zero_grad()
            each(torch.ones(3, 8)).square().sum().backward()
            its.step()
    assert pair[1].stats()["early_waves"] > 0
    assert torch.equal(model[0].weight, pair[0][0].weight)


# Several ranks.


class _Counted:
    """Counts what this process sends, by Muster and by torch."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("send", "isend", "all_gather_object", "all_gather_into_tensor", "all_reduce", "broadcast"):
            self._wrap(patch, dist, name)
        for name in ("all_gather_tensor", "all_reduce", "all_to_all_single"):
            self._wrap(patch, torch.distributed._functional_collectives, name)
        self._wrap(patch, Messages, "post")

    def _wrap(self, patch: pytest.MonkeyPatch, where, name: str) -> None:
        original = getattr(where, name)

        def call(*args, **kwargs):
            self.calls.append(name)
            return original(*args, **kwargs)

        patch.setattr(where, name, call)


def _local_state(rank: int, ranks: int) -> None:
    model = nn.Sequential(nn.Linear(9, 17), nn.Linear(17, 9, bias=False), nn.Linear(9, 6))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    _steps(optimizer, range(2))
    with pytest.MonkeyPatch.context() as patch:
        counted = _Counted(patch)
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        assert counted.calls == []
        optimizer.grad_norm()
        assert counted.calls  # it does count
    elements = 0
    for number, weight in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in optimizer.state[weight].items():
            assert state["state"][number][name] is value
            if name in ("momentum", "first", "second"):
                assert isinstance(value, DTensor) and value.placements == weight.placements
                assert value.to_local().shape == weight.to_local().shape
            if name in ("momentum", "variance", "first", "second"):
                elements += value.to_local().numel()
    held = sum(weight.to_local().numel() for weight in model.parameters())
    assert elements <= 3 * held + 17  # moments, and a mean square per line: of this rank's shards only


def test_state_dict_under_fsdp2_sends_nothing_and_copies_nothing() -> None:
    run_ranks(4, _local_state)


def _cut_matrices(rank: int, ranks: int) -> None:
    """Lines of ``heads``, ``split_*``, ``view`` and columns follow no dimension of the parameter, yet state is real."""
    mesh = init_device_mesh("cpu", (ranks,))
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    for shape, options in (
        ((12, 5), {"heads": 3}),
        ((12, 5), {"split_rows": [2, 7, 3], "normalize": "columns"}),
        ((12, 5), {"split_rows": [2, 7, 3], "normalize": ["columns", "rows", "longer"]}),
        ((4, 30), {"view": (5, 8, 3)}),
        ((5, 9), {"normalize": "columns"}),
        ((3, 7, 5), {}),
        ((8, 3, 3, 2), {"flatten": True}),
    ):
        start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        whole, spread = nn.Parameter(start), nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]))
        reference = muster.torch.NorMuon([("w", whole)], process_group=single, **options)
        optimizer = muster.torch.NorMuon([("w", spread)], **options)
        for step in range(6):
            for weight, each in ((whole, reference), (spread, optimizer)):
                weight.grad = torch.sin(weight.detach() * 5 + step)
                each.step()
            if step == 2:  # through a state_dict as torch.save has it: whole tensors
                entries = optimizer.state_dict()["state"][0]
                saved = {k: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for k, v in entries.items()}
                for name in ("momentum", "variance"):
                    assert torch.equal(saved[name], reference.state_dict()["state"][0][name]), (options, name)
                another = muster.torch.NorMuon([("w", spread)], **options)
                another.load_state_dict({**optimizer.state_dict(), "state": {0: saved}})
                optimizer = another
        assert torch.equal(spread.full_tensor(), whole), options


def test_state_is_laid_out_for_every_way_to_cut_a_matrix() -> None:
    run_ranks(3, _cut_matrices)


def _replicas(rank: int, ranks: int) -> None:
    """The default: replicas keep all state, the same on every rank. With grad_sync the engine keeps it once."""
    for layout in (alone, hsdp):
        trained, averaged = Trained(layout, dist.group.WORLD), Trained(layout, dist.group.WORLD, replicate_state=False)
        for step in range(1, 4):
            trained.step(step)
            averaged.step(step)
        ours, theirs = trained.optimizer, averaged.optimizer
        whole = theirs.state_dict()["state"]
        for number, weight in enumerate(p for group in ours.param_groups for p in group["params"]):
            for name, value in ours.state[weight].items():
                mine = value.full_tensor() if isinstance(value, DTensor) else value
                everybody = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_gather(everybody, mine.contiguous())
                assert all(torch.equal(mine, other) for other in everybody)
                other = whole[number][name]
                other = other.full_tensor() if isinstance(other, DTensor) else other
                assert torch.equal(other.flatten(), mine.flatten()), name
        kept = {name for p in theirs.state for name in theirs.state[p]}
        assert kept == COUNTERS  # nothing that could be stale


def test_replicas_keep_all_state_or_none() -> None:
    run_ranks(4, _replicas)


def _consolidate(rank: int, ranks: int) -> None:
    model = DistributedDataParallel(nn.Linear(6, 4))
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False), replicate_state=False)
    optimizer.consolidate_state_dict()
    assert optimizer.state_dict()["state"] == {}
    _steps(optimizer, range(2))
    expected = optimizer.state_dict()["state"][0]["momentum"]
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        state = optimizer.state_dict()
        assert torch.equal(state["state"][0]["momentum"], expected) and expected.any()
    else:
        with pytest.raises(RuntimeError, match="rank 1 has it"):
            optimizer.state_dict()
    dist.barrier()
    _steps(optimizer, range(2, 3))
    state = optimizer.state_dict()  # all together again
    assert not torch.equal(state["state"][0]["momentum"], expected)
    with pytest.raises(ValueError, match="rank 7, expected 0 to 1"):
        optimizer.consolidate_state_dict(to=7)
    # By default one rank alone may save: nothing has to be consolidated.
    replicated = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    _steps(replicated, range(2))
    replicated.consolidate_state_dict()
    if rank == 0:
        assert replicated.state_dict()["state"][0]["momentum"].any()
    with pytest.raises(TypeError, match="2 ranks.*state_dict"):
        copy.deepcopy(replicated)
    with pytest.raises(ValueError, match="replicate_state=True: not with grad_sync"):
        muster.torch.NorMuon(model.parameters(), grad_sync=True, replicate_state=True)


def test_a_state_is_consolidated_on_one_rank() -> None:
    run_ranks(2, _consolidate)


def _uneven(rank: int, ranks: int) -> None:
    """7 rows on 3 x 2: _StridedShard does not say where they are, so torch could not put them together."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
    for rows, refused in ((7, True), (11, False)):
        layer = parallelize_module(nn.Linear(4, rows, bias=False), mesh["tp"], ColwiseParallel(), src_data_rank=None)
        fully_shard(layer, mesh=mesh["dp"])
        optimizer = muster.torch.NorMuon(layer.named_parameters())
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.step()
        if not refused:
            assert optimizer.state_dict()["state"][0]["momentum"].to_local().any()
            continue
        with pytest.raises(ValueError, match="'weight'.*opt.save"):
            optimizer.state_dict()
        whole = {"momentum": torch.ones(rows, 4)}
        with pytest.raises(ValueError, match="'weight'.*opt.save"):
            optimizer.load_state_dict({"state": {0: whole}, "param_groups": [{"params": [0]}]})


def test_a_layout_that_placements_do_not_describe_names_save() -> None:
    run_ranks(6, _uneven)


def _cleared(rank: int, ranks: int) -> None:
    for options in ({}, {"replicate_state": False}):
        trained, fresh = (Trained(hsdp, dist.group.WORLD, **options) for _ in range(2))
        trained.step(1)
        trained.optimizer.state.clear()
        for mine, theirs in zip(fresh.model.parameters(), trained.model.parameters()):
            mine.detach().to_local().copy_(theirs.detach().to_local())
        trained.step(2)
        fresh.step(2)
        for name, weight in trained.weights().items():
            assert torch.equal(weight, fresh.weights()[name]), (options, name)


def test_a_cleared_state_starts_from_zero_on_all_ranks() -> None:
    run_ranks(4, _cleared)


def _checkpoint(rank: int, ranks: int, folder: str) -> None:
    trained, twin = Trained(fsdp, dist.group.WORLD), Trained(fsdp, dist.group.WORLD)
    for step in range(1, 3):
        trained.step(step)
    trained.optimizer.save(folder)
    twin.optimizer.load(folder)
    trained.step(3)
    twin.step(3)
    for name, weight in trained.weights().items():
        assert torch.equal(weight, twin.weights()[name])


def test_checkpoints_of_the_engine_have_state_of_both_kinds(tmp_path) -> None:
    run_ranks(2, _checkpoint, str(tmp_path / "checkpoint"))
    _, optimizer = _optimizer()
    for wrong in (None, 5):
        with pytest.raises(TypeError):
            optimizer.save(wrong)
    assert not any((tmp_path / name).exists() for name in ("None", "5"))
