"""On a GPU. Ranks share it: each has a NCCL_HOSTID of its own."""

from __future__ import annotations

import gc
import statistics
import time

import pytest
import torch
import torch.distributed as dist
from layouts import Trained, alone, assert_same, fsdp, layouts
from ranks import run_ranks
from test_orthogonalization import POLAR_EXPRESS, _reference
from test_parity import _difference, _muon, _share_of_way, _torch_muon, _train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster
import muster.torch
from muster import _muster


def _why_not() -> str:
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return "" if _muster.cuda_available() else "muster was built without CUDA"


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "there is a GPU")
STEPS = 6
SHAPES = [(24, 24), (64, 16), (16, 48), (256, 256), (384, 128), (128, 512)]


def _own_group(rank: int, ranks: int) -> dist.ProcessGroup:
    return [dist.new_group([r]) for r in range(ranks)][rank]


# Both orthogonalize in 16 bits: elements of up to 0.5 are off by 1 % or so, in 20 steps of 0.01 to 0.04.
def test_muon_is_torch_muon() -> None:
    ours, theirs = (_train(make, torch.float32, SHAPES, "cuda") for make in (_muon, _torch_muon))
    print(f"\ntorch.optim.Muon: off by {_difference(ours, theirs):.1e} in float32")
    assert _difference(ours, theirs) < 1e-2
    halves = [
        _train(lambda p, make=make: make(p, weight_decay=0), torch.bfloat16, SHAPES, "cuda")
        for make in (_muon, _torch_muon)
    ]
    off = _share_of_way(*halves, torch.bfloat16)
    print(f"torch.optim.Muon: off by {off:.1%} of the way in bfloat16")
    assert off < 1 / 8  # as in test_parity.py


def test_adamw_is_torch_adamw() -> None:
    shapes = [(7,), (5, 6), (2, 3, 4), (), (1000, 33)]
    options = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1, "eps": 1e-6}
    ours = _train(lambda p: muster.torch.NorMuon(p, algorithm="adamw", **options), torch.float32, shapes, "cuda")
    theirs = _train(lambda p: torch.optim.AdamW(p, **options), torch.float32, shapes, "cuda")
    print(f"\ntorch.optim.AdamW: off by {_difference(ours, theirs):.1e}")
    assert _difference(ours, theirs) < 2e-6


def _weights(shapes=SHAPES) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]


def _gradient(weight: torch.Tensor, step: int) -> torch.Tensor:
    return torch.sin(weight.detach() * 7 + step)


def test_steps_keep_the_order_of_any_stream() -> None:
    """Gradients that come late, weights that are read at once, and gradients whose memory is reused at once."""
    reference, weights = _weights(), _weights()
    one, other = (muster.torch.NorMuon(p) for p in (reference, weights))
    for step in range(STEPS):
        for weight in reference:
            weight.grad = _gradient(weight, step)
        torch.cuda.synchronize()
        one.step()
        one.synchronize()
    side = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(STEPS):
        stream = side[step % len(side)]
        stream.wait_stream(side[(step - 1) % len(side)])
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            for weight in weights:
                weight.grad = _gradient(weight, step)
            other.step()
            for weight in weights:
                shape, weight.grad = weight.shape, None
                torch.full(shape, float("nan"), device="cuda")
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(reference, weights))
    other.synchronize()
    assert other.stats()["step"] == STEPS


@pytest.mark.parametrize("bf16_weights", ["nearest", "master", "mantissa"])
def test_resumes_bit_for_bit_and_follows_what_moves(bf16_weights: str) -> None:
    def make() -> tuple[list[nn.Parameter], muster.torch.NorMuon]:
        weights = [nn.Parameter(w.detach().bfloat16()) for w in _weights()]
        return weights, muster.torch.NorMuon(weights, bf16_weights=bf16_weights)

    def train(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            for weight in weights:
                weight.grad = _gradient(weight, step)
            optimizer.step()

    (first, one), (second, two) = make(), make()
    train(first, one, range(3))
    train(second, two, range(2))
    for weight in second:
        weight.data = weight.data.clone()
    train(second, two, range(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    third, three = make()
    with torch.no_grad():
        torch._foreach_copy_(third, first)
    three.load_state_dict(one.state_dict())
    train(first, one, range(3, STEPS))
    train(third, three, range(3, STEPS))
    assert all(torch.equal(a, b) for a, b in zip(first, third))


def test_bad_input_names_the_parameter() -> None:
    mixed = [("a", nn.Parameter(torch.zeros(4, 4, device="cuda"))), ("b", nn.Parameter(torch.zeros(4, 4)))]
    with pytest.raises(ValueError, match="'b' is on cpu, others are on cuda:0"):
        muster.torch.NorMuon(mixed).plan(verbose=False)
    weight = nn.Parameter(torch.zeros(4, 4, device="cuda"))
    optimizer = muster.torch.NorMuon([("w", weight)], non_finite="error")
    weight.grad = torch.full_like(weight, float("nan"))
    with pytest.raises(ValueError, match="'w'"):
        optimizer.step()
    weight.grad = torch.eye(4, device="cuda").to_sparse()
    with pytest.raises(ValueError, match=r"'w'.*sparse"):
        optimizer.step()
    assert not weight.any()
    weight.grad = torch.eye(4, device="cuda")
    optimizer.step()
    optimizer.synchronize()
    assert weight.any()


def _every_layout(rank: int, ranks: int) -> list[str]:
    single, used, made = _own_group(rank, ranks), [], set()
    for layout in layouts(ranks):
        reference = Trained(alone, single, "cuda")
        trained = Trained(layout, dist.group.WORLD, "cuda", waves=2)
        for step in range(1, STEPS + 1):
            reference.step(step)
            trained.step(step)
        trained.optimizer.synchronize()
        assert_same(trained, reference, f"{layout.__name__} on {ranks} ranks")
        assert trained.optimizer.grad_norm() == reference.optimizer.grad_norm(), layout.__name__
        assert trained.optimizer.clip_grad_norm(0.5) == reference.optimizer.clip_grad_norm(0.5)
        link = trained.optimizer._connection.link
        used.append(link.name)
        made.add(id(link.communicator))
    if ranks > 1:
        assert len(made) == 1, "each optimizer was made while the last was there: one communicator does for all"
        through_host = Trained(fsdp, dist.group.WORLD, "cuda", communicator="process_group")
        again = Trained(alone, single, "cuda")
        for step in range(1, STEPS + 1):
            through_host.step(step)
            again.step(step)
        through_host.optimizer.synchronize()
        assert_same(through_host, again, "through the process group")
    return used


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_layout_gives_the_bits_of_one_process(ranks: int) -> None:
    used = run_ranks(ranks, _every_layout, timeout=80)
    assert all(name == ("nccl" if ranks > 1 else "none") for names in used for name in names), used


def _refused_on_one_rank(rank: int, ranks: int) -> str:
    weight = nn.Parameter(torch.ones(6, 4, device="cuda"))
    optimizer = muster.torch.NorMuon([("w", weight)], lr=0.1)
    said = ""
    for step in range(5):
        weight.grad = torch.ones(6, 4, device="cuda")
        if rank == 1 and step == 1:
            weight.grad = weight.grad.to_sparse()
        try:
            optimizer.step()
        except ValueError as error:
            said += f"step {step}: {error}"
    optimizer.synchronize()
    assert weight.isfinite().all() and not torch.equal(weight, torch.ones_like(weight))
    del optimizer
    gc.collect()
    return said


def test_what_one_rank_refused_the_other_hears_later() -> None:
    there, here = run_ranks(2, _refused_on_one_rank, timeout=60)
    assert here.startswith("step 1: parameter 'w': its gradient is sparse"), here
    assert "rank 1 refused" in there and there[5] in "123", there


def _train_model(rank: int, ranks: int, how: str) -> list[float]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 13)).cuda()
    if how == "ddp":
        model = DistributedDataParallel(model)
    elif how == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cuda", (ranks,)))
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    optimizer = muster.torch.NorMuon(groups, grad_sync=how == "ours")
    losses = []
    for step in range(40):
        tokens = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank].cuda()
        loss = nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().cpu() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    optimizer.synchronize()
    return losses


@pytest.fixture(scope="module")
def losses_of_one() -> list[float]:
    return run_ranks(1, _train_model, "ours", timeout=40)[0]


@pytest.mark.parametrize("how", ["ddp", "ours", "fsdp"])
def test_models_train(how: str, losses_of_one: list[float]) -> None:
    losses = run_ranks(2, _train_model, how, timeout=40)[0]
    assert losses[-1] < losses[0] / 2
    # Gradients are averaged in other orders.
    assert losses == pytest.approx(losses_of_one, rel=2e-2)


# Orthogonalization as a function.
def _exact(x: torch.Tensor) -> torch.Tensor:
    """polar_express in float64, with the safety that 16-bit products need."""
    return _reference(x.cpu(), POLAR_EXPRESS, 1.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(256, 256), (3, 128, 512), (512, 128), (1, 9), (2, 3, 5, 8), (700, 16, 24)], ids=str)
def test_orthogonalize_is_near_float64_and_independent_of_the_batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    before = x.clone()
    result = muster.torch.orthogonalize(x)
    assert (result.shape, result.dtype, result.device) == (x.shape, dtype, x.device) and torch.equal(x, before)
    exact = _exact(x)
    # Products of 16 bits: tests/kernels/cuda/orthogonalize_test.cpp has the same limit.
    assert (result.double().cpu() - exact).norm() < 0.15 * exact.norm()
    flat, results = x.flatten(0, -3) if x.dim() > 2 else x[None], result.reshape(-1, *shape[-2:])
    for i in {0, len(flat) // 2, len(flat) - 1}:
        assert torch.equal(muster.torch.orthogonalize(flat[i]), results[i])
    assert torch.equal(muster.torch.orthogonalize(x.mT.contiguous().mT), result)
    assert torch.equal(muster.torch.orthogonalize(x.mT), muster.torch.orthogonalize(x.mT.contiguous()))
    out = torch.empty(*shape[:-1], 2 * shape[-1], dtype=dtype, device="cuda")[..., ::2]
    assert torch.equal(muster.torch.orthogonalize(x, out=out), result)
    assert torch.equal(muster.torch.orthogonalize(x, out=x), result) and torch.equal(x, result)


def test_orthogonalize_keeps_the_order_of_the_current_stream() -> None:
    """Input that comes late, on streams of the caller, and memory that is reused at once."""
    given = [torch.randn(4, 256, 128, device="cuda") for _ in range(6)]
    expected = [muster.torch.orthogonalize(x) for x in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for i, x in enumerate(given):
        with torch.cuda.stream(streams[i % 3]):
            late = torch.zeros_like(x)
            torch.cuda._sleep(20_000_000)
            late.copy_(x)
            result = muster.torch.orthogonalize(late)
            late.fill_(float("nan"))
            del late
            torch.full_like(x, float("nan"))
            same = torch.equal(result, expected[i])
        assert same, i


@pytest.mark.parametrize("warm", [True, False])
def test_orthogonalize_is_captured_and_replayed_with_other_input(warm: bool) -> None:
    x = torch.randn(3, 256, 192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            muster.torch.orthogonalize(x, out=out)
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = muster.torch.orthogonalize(x.mT)
        muster.torch.orthogonalize(x, "capped3", out=out)
    for _ in range(3):
        x.normal_()
        muster.torch.orthogonalize(torch.randn(2, 64, 64, device="cuda"))  # work between replays
        graph.replay()
        assert torch.equal(result, muster.torch.orthogonalize(x.mT))
        assert torch.equal(out, muster.torch.orthogonalize(x, "capped3"))


def test_orthogonalize_compiles_without_a_graph_break() -> None:
    x = torch.randn(4, 128, 256, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: muster.torch.orthogonalize(x.mT), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), muster.torch.orthogonalize(x.mT))


# Steps that begin in backward.
def test_host_time_of_a_step() -> None:
    """Workload A of GPT-2-small: 72 matrices. Printed, not judged."""
    shapes = [(768, 768)] * 48 + [(3072, 768)] * 12 + [(768, 3072)] * 12
    weights = _weights(shapes)
    optimizer = muster.torch.NorMuon(weights)
    steps = 25
    for moving in (True, False):
        host, whole = [], []
        for _ in range(steps):
            for weight in weights:
                if moving:
                    weight.grad = torch.randn_like(weight)
                elif weight.grad is not None:
                    weight.grad.normal_()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizer.step()
            host.append((time.perf_counter() - begin) * 1e3)
            torch.cuda.synchronize()
            whole.append((time.perf_counter() - begin) * 1e3)
        first = f"; first {host[0]:.0f} ms" if moving else ""
        print(
            f"\nstep of 72 matrices, gradients {'elsewhere' if moving else 'where they were'}: host "
            f"{statistics.median(host[5:]):.3f} ms (min {min(host[5:]):.3f}), until done "
            f"{statistics.median(whole[5:]):.3f} ms{first}"
        )
    assert optimizer.stats()["step"] == 2 * steps and optimizer.stats()["replayed"]
