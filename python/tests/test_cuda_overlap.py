"""Steps that begin during backward, on GPUs, which ranks may share."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from test_cuda import pytestmark  # noqa: F401  skips without a GPU
from test_overlap import _clip, _Model, _same
from test_overlap import _optimizer as _in_waves
from test_timeline import _assert_nested, _slices
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster
import muster.torch


class _Late(torch.autograd.Function):
    """Hooks of what comes after it are called long before the device gets there."""

    @staticmethod
    def forward(context, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(2_000_000)
        return gradient


class _LateModel(_Model):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = _Late.apply(self.first(self.embedding(tokens)).relu())
        x = _Late.apply(self.twice(_Late.apply(self.twice(x).relu())).relu())
        return self.head(_Late.apply(self.last(x)))


def _backward(model: nn.Module, step: int, rank: int = 0, ranks: int = 1) -> None:
    tokens = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank].cuda()
    nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13).backward()


def _train_in_waves(
    model: nn.Module, optimizer: muster.torch.NorMuon, steps: range, rank: int = 0, ranks: int = 1
) -> list[int]:
    """How many waves began early, a step. Memory of gradients is used for something else as soon as it is free."""
    early = []
    for step in steps:
        _backward(model, step, rank, ranks)
        optimizer.step()
        early.append(optimizer.stats()["early_waves"])
        shapes = [p.grad.shape for p in model.parameters() if p.grad is not None]
        optimizer.zero_grad(set_to_none=True)
        for shape in shapes:
            torch.full(shape, float("nan"), device="cuda")
    optimizer.synchronize()
    return early


@pytest.mark.parametrize("stream", ["default", "other"])
def test_a_step_in_backward_gives_the_same_bits(stream: str) -> None:
    """Also for a parameter that is used twice, and one that never is."""
    model, twin, start = _LateModel().cuda(), _LateModel().cuda(), _LateModel().cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.current_stream() if stream == "default" else torch.cuda.Stream()):
        early = _train_in_waves(model, _in_waves(model, overlap=True), range(8))
        _train_in_waves(twin, _in_waves(twin), range(8))
    torch.cuda.synchronize()
    assert early == [0] + [2] * 7  # the first backward is watched
    assert _same(model, twin)
    assert not _same(model, start)


def test_a_step_in_backward_that_went_wrong_is_not_taken_for_whole(tmp_path: Path) -> None:
    model = _LateModel().cuda()
    optimizer = _in_waves(model, overlap=True)
    _train_in_waves(model, optimizer, range(3))
    optimizer.save(tmp_path / "good")
    good = copy.deepcopy(model)
    _backward(model, 3)
    _clip(model, optimizer)
    with pytest.raises(ValueError, match="was changed after backward; clipping"):
        optimizer.step()
    for call in (optimizer.step, optimizer.state_dict, optimizer.synchronize):
        with pytest.raises(muster.CommError, match="step 4 broke off"):
            call()
    optimizer.load(tmp_path / "good")
    assert _same(model, good)
    twin = _in_waves(good)
    twin.load(tmp_path / "good")
    for each, other in ((model, optimizer), (good, twin)):
        other.zero_grad()
        _train_in_waves(each, other, range(3, 6))
    assert _same(model, good)


def _wrapped(how: str, model: nn.Module, group: dist.ProcessGroup, ranks: int) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model, process_group=group, find_unused_parameters=True, bucket_cap_mb=0.001)
    if how == "fsdp":
        world = group is dist.group.WORLD
        mesh = init_device_mesh("cuda", (ranks,)) if world else DeviceMesh.from_group(group, "cuda")
        for layer in (model.first, model.twice, model.last):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def _in_waves_on(rank: int, ranks: int, how: str, backend: str) -> list[list[int]]:
    group = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="cpu:gloo,cuda:nccl")
    trained, early = [], []
    for overlap in (True, False):
        model = _wrapped(how, _LateModel().cuda(), group, ranks)
        options = {"overlap": overlap, "grad_sync": how == "ours", "process_group": group}
        optimizer = _in_waves(model, **options)
        if how == "ddp":
            model.register_comm_hook(optimizer, muster.torch.ddp_hook)
        early.append(_train_in_waves(model, optimizer, range(5), rank, ranks))
        trained.append(model)
    assert _same(*trained)
    return early


@pytest.mark.parametrize("backend", ["gloo", "nccl"])  # of torch's collectives; ours are NCCL's
@pytest.mark.parametrize("how", ["ours", "fsdp", "ddp"])
def test_ranks_that_step_in_backward_give_the_same_bits(how: str, backend: str) -> None:
    if how == "ddp" and backend == "gloo":
        pytest.skip("DDP does not wait for what Gloo copies back to the device")
    for with_overlap, without in run_ranks(2, _in_waves_on, how, backend, timeout=120):
        assert with_overlap[0] == 0 and min(with_overlap[1:]) > 0
        assert max(without) == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_profile_has_what_the_device_did(overlap: bool, tmp_path: Path) -> None:
    model, twin = _LateModel().cuda(), _LateModel().cuda()
    optimizer = _in_waves(model, overlap=overlap)
    _train_in_waves(model, optimizer, range(3))
    begin = time.time_ns()
    with muster.torch.profile() as timeline:
        _train_in_waves(model, optimizer, range(3, 6))
    torch.cuda.synchronize()
    end = time.time_ns()
    _train_in_waves(model, optimizer, range(6, 8))
    timeline.save(tmp_path / "muster.json")
    events = _slices(tmp_path / "muster.json")
    _assert_nested(events)
    steps = [event for event in events if event["cat"] == "muster step"]
    assert [step["name"] for step in steps] == [f"NorMuon step {number}" for number in (4, 5, 6)]
    products = [event for event in events if event["name"].startswith("orthogonalize")]
    assert {event["args"]["wave"] for event in products} == ({0, 1, 2} if overlap else {0, 1})  # as planned
    slack = 1_000_000  # the device's clock is read some time after what it tells of
    for event in timeline.events():
        if event["ph"] == "X":
            assert begin - slack <= event["ts"] * 1e3 and (event["ts"] + event["dur"]) * 1e3 <= end + slack, event
    _train_in_waves(twin, _in_waves(twin), range(8))
    assert _same(model, twin)
