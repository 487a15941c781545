"""QK-clip: factors by maxima of all ranks, on the rows of the heads, the same bits on every layout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from layouts import values
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import muster.torch
from muster.torch import HeadRows, QKHeads
from muster.torch.layout import local
from muster.torch.ranks import Ranks

TAU = 100.0
HEADS = {
    "grouped": QKHeads.separate("q.weight", "k.weight", heads=4, key_heads=2, head_dim=4),
    "biases": QKHeads(4, 2, (HeadRows("q.bias", 8), HeadRows("k.bias", 4))),
    "fused": QKHeads.fused("qkv.weight", heads=2, head_dim=4),
    "latent": QKHeads.latent("latent_q.weight", "latent_kv.weight", heads=2, content=3, rotary=2, value=3),
}
FORMS = [(torch.float32, "nearest")]
FORMS += [(torch.bfloat16, form) for form in ("master", "mantissa", "nearest", "stochastic")]


class Attention(nn.Module):
    """The projections of four layers. No parameter has more than 256 elements, so their numbers are exact in bf16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 16), nn.Linear(8, 8)
        self.qkv, self.latent_q = nn.Linear(8, 24, bias=False), nn.Linear(8, 10, bias=False)
        self.latent_kv, self.other = nn.Linear(8, 12, bias=False), nn.Linear(8, 9, bias=False)
        for p in self.parameters():
            p.data = torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape).to(dtype)


def alone(model: nn.Module, ranks: int) -> None:
    """Plain tensors: on many ranks, replicas."""


def fsdp(model: nn.Module, ranks: int) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))


def fsdp_columns(model: nn.Module, ranks: int) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)), shard_placement_fn=lambda p: Shard(p.ndim - 1))


def _colwise(model: nn.Module, mesh) -> None:
    parallelize_module(model, mesh, {name: ColwiseParallel() for name, _ in model.named_children()}, src_data_rank=None)


def tp(model: nn.Module, ranks: int) -> None:
    _colwise(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)))


def hsdp(model: nn.Module, ranks: int) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("a", "b")))


def fsdp_tp(model: nn.Module, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    _colwise(model, mesh["tp"])
    fully_shard(model, mesh=mesh["dp"])


def layouts(ranks: int) -> list[Callable[[nn.Module, int], None]]:
    even = [] if 8 % ranks else [fsdp_columns]
    return [alone, fsdp, tp, *even] + ([hsdp, fsdp_tp] if ranks == 4 else [])


def groups(model: nn.Module) -> list[dict]:
    named = dict(model.named_parameters())
    take = lambda *names: [(name, named.pop(name)) for name in names]  # noqa: E731
    return [
        {"params": take("q.weight", "k.weight"), "weight_decay": 0.1},
        {"params": take("qkv.weight"), "every": 2},
        {"params": take("latent_q.weight", "latent_kv.weight", "other.weight"), "algorithm": "muon"},
        {"params": list(named.items()), "algorithm": "adamw", "every": 2, "lr": 1e-2},
    ]


def maxima(step: int, rank: int) -> dict[str, list[float]]:
    """Logits that a rank saw. Every second step, rank 1 computed no head of the layer "fused"."""
    generator = torch.Generator().manual_seed(97 * step + rank)
    out = {layer: (TAU * (0.5 + 1.5 * torch.rand(h.heads, generator=generator))).tolist() for layer, h in HEADS.items()}
    if rank == 1 and step % 2:
        out["fused"] = [-math.inf] * 2
    elif rank == 1:
        del out["fused"]
    return out


def combined(step: int, ranks: int) -> dict[str, list[float]]:
    every = [maxima(step, rank) for rank in range(ranks)]
    return {layer: [max(each) for each in zip(*(m[layer] for m in every if layer in m))] for layer in HEADS}


class Trained:
    def __init__(self, layout, group, dtype: torch.dtype, form: str, **options) -> None:
        self.model = Attention(dtype)
        layout(self.model, dist.get_world_size(group) if group is not None else 1)
        self.numbers = {}
        for name, p in self.model.named_parameters():
            mine = local(p.detach())
            self.numbers[name] = mine.long()
            mine.copy_(values(name, 0, p.shape)[mine.long()])
        options = {"qk_heads": HEADS, "process_group": group, **options}
        self.optimizer = muster.torch.NorMuon(groups(self.model), bf16_weights=form, **options)

    def step(self, number: int, given: dict | None) -> None:
        for name, p in self.model.named_parameters():
            p.grad = None
            if name == "latent_kv.weight" and number % 2:
                continue  # sits the step out
            mine = values(name, number, p.shape)[self.numbers[name]].to(p.dtype)
            if isinstance(p, DTensor):
                mine = DTensor.from_local(
                    mine, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
                )
            p.grad = mine
        if given is not None:
            self.optimizer.qk_clip(given, tau=TAU)
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: local(p.detach()) for name, p in self.model.named_parameters()}

    def state(self, entry: str) -> dict[str, torch.Tensor]:
        state = self.optimizer.state
        named = self.model.named_parameters()
        return {name: local(state[p][entry]) for name, p in named if entry in state[p]}

    def exact(self, form: str) -> dict[str, torch.Tensor]:
        """The weights in float64, with all the bits that the optimizer keeps."""
        if form == "master":
            return {name: master.double() for name, master in self.state("master").items()}
        if form != "mantissa":
            return {name: w.double() for name, w in self.weights().items()}
        low = self.state("mantissa")
        return {
            name: (w.view(torch.int16).int() * 65536 + low[name].int()).view(torch.float32).double()
            for name, w in self.weights().items()
        }


def expected_factors(given: dict[str, list[float]]) -> dict[str, torch.Tensor]:
    """One per row, by hand, in float64."""
    gamma = lambda m: min(1.0, TAU / m)  # noqa: E731
    g = given["grouped"]
    grouped = [math.sqrt(gamma(max(g[:2]))), math.sqrt(gamma(max(g[2:])))]
    b = given["biases"]
    biases = [math.sqrt(gamma(max(b[:2]))), math.sqrt(gamma(max(b[2:])))]
    fused = [math.sqrt(gamma(m)) for m in given["fused"]]
    latent = [gamma(m) for m in given["latent"]]
    rows = {
        "q.weight": [f for f in grouped for _ in range(8)],
        "k.weight": [f for f in grouped for _ in range(4)],
        "q.bias": [f for f in biases for _ in range(8)],
        "k.bias": [f for f in biases for _ in range(4)],
        "qkv.weight": [f for f in fused for _ in range(4)] * 2 + [1.0] * 8,
        "latent_q.weight": [f for x in latent for f in (*[math.sqrt(x)] * 3, *[x] * 2)],
        "latent_kv.weight": [f for x in latent for f in (*[math.sqrt(x)] * 3, *[1.0] * 3)],
        "other.weight": [1.0] * 9,
    }
    return {name: torch.tensor(row, dtype=torch.float64) for name, row in rows.items()}


def _every_layout(rank: int, ranks: int) -> None:
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    for dtype, form in FORMS:
        for layout in layouts(ranks):
            one, many = Trained(alone, single, dtype, form), Trained(layout, dist.group.WORLD, dtype, form, waves=2)
            for step in range(1, 6):
                given = step != 4  # a step without QK-clip
                one.step(step, combined(step, ranks) if given else None)
                many.step(step, maxima(step, rank) if given else None)
            for what in ("weights", "master", "mantissa", "momentum", "first", "second"):
                whole = one.weights() if what == "weights" else one.state(what)
                mine = many.weights() if what == "weights" else many.state(what)
                assert set(mine) == set(whole)
                for name in mine:
                    expected = whole[name].flatten()[many.numbers[name]]
                    assert torch.equal(mine[name], expected), f"{layout.__name__} {form} {what} {name}"


def _grad_sync(rank: int, ranks: int) -> None:
    """Owners return weights to replicas, also those of parameters that sit the step out."""
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    for dtype, form in FORMS:
        one = Trained(alone, single, dtype, form)
        many = Trained(alone, dist.group.WORLD, dtype, form, grad_sync=True)
        for step in range(1, 6):
            one.step(step, combined(step, ranks))
            many.step(step, maxima(step, rank))
            # Averages of equal gradients are those gradients on 2 and 4 ranks.
            for name, mine in many.weights().items():
                assert torch.equal(mine, one.weights()[name]), f"{form} {name} step {step}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_layout_gives_the_bits_of_one_rank(ranks: int) -> None:
    run_ranks(ranks, _every_layout)


@pytest.mark.parametrize("ranks", [2, 4])
def test_replicas_that_get_weights_back(ranks: int) -> None:
    run_ranks(ranks, _grad_sync)


@pytest.mark.parametrize(("dtype", "form"), FORMS[:3])
def test_rows_are_multiplied_as_in_float64(dtype: torch.dtype, form: str) -> None:
    plain, clipped = Trained(alone, None, dtype, form), Trained(alone, None, dtype, form)
    given = combined(1, 1)
    plain.step(1, None)
    clipped.step(1, given)
    factors = expected_factors(given)
    assert any(bool((f < 1).any()) for f in factors.values())
    for name, after in clipped.exact(form).items():
        rows = factors[name] if after.ndim == 1 else factors[name].unsqueeze(1)
        expected = plain.exact(form)[name] * rows
        # The factor in f32 is off by up to 1.5 units, and its product by half of one.
        assert torch.all((after - expected).abs() <= 2 * 2**-23 * expected.abs()), name
    for entry in ("momentum", "first", "second", "variance"):
        for name, state in clipped.state(entry).items():
            assert torch.equal(state, plain.state(entry)[name]), f"{entry} {name}"


def _counts(rank: int, ranks: int) -> int:
    calls = []
    largest = Ranks.largest
    Ranks.largest = lambda self, what, values: (calls.append(values.numel()), largest(self, what, values))[1]
    trained = Trained(fsdp, dist.group.WORLD, torch.float32, "nearest")
    for step in range(1, 4):
        trained.step(step, maxima(step, rank))
    assert calls == [2 + 2 + 2 + 2] * 3
    return len(calls)


def test_one_reduction_per_step() -> None:
    assert run_ranks(2, _counts) == [3, 3]


def _overlap(rank: int, ranks: int) -> None:
    def train(overlap: bool) -> dict[str, torch.Tensor]:
        trained = Trained(alone, dist.group.WORLD, torch.float32, "nearest", grad_sync=True, overlap=overlap)
        for step in range(1, 6):
            trained.optimizer.qk_clip(maxima(step, rank), tau=TAU)
            trained.optimizer.zero_grad()
            named = trained.model.named_parameters()
            sum((p * values(name, step, p.shape).view(p.shape)).sum() for name, p in named).backward()
            trained.optimizer.step()
        return trained.weights()

    early = train(True)
    for name, late in train(False).items():
        assert torch.equal(late, early[name]), name


def test_overlapped_steps_give_the_same_bits() -> None:
    run_ranks(2, _overlap)


def test_layers_without_rotary_rows_need_no_other_power() -> None:
    trained = Trained(alone, None, torch.float32, "nearest", qk_heads={"fused": HEADS["fused"]})
    plain = Trained(alone, None, torch.float32, "nearest")
    trained.step(1, {"fused": [400.0, 50.0]})
    plain.step(1, None)
    factors = torch.tensor(([0.5] * 4 + [1.0] * 4) * 2 + [1.0] * 8)
    assert torch.equal(trained.weights()["qkv.weight"], plain.weights()["qkv.weight"] * factors.unsqueeze(1))


def test_a_copy_clips_too() -> None:
    trained = Trained(alone, None, torch.float32, "nearest")
    trained.step(1, combined(1, 1))
    model, optimizer = copy.deepcopy((trained.model, trained.optimizer))
    again = Trained(alone, None, torch.float32, "nearest")
    again.model, again.optimizer = model, optimizer
    trained.step(2, combined(2, 1))
    again.step(2, combined(2, 1))
    for name, weight in trained.weights().items():
        assert torch.equal(weight, again.weights()[name]), name


@pytest.mark.parametrize(
    ("given", "tau", "said"),
    [
        ({"grouped": [1.0] * 3}, 100.0, r"qk_clip: layer 'grouped': maxima of shape \(3,\), expected \(4,\)"),
        ({"fused": [1.0, math.nan]}, 100.0, "qk_clip: layer 'fused': the maximum of head 1 is nan"),
        ({"fused": [math.inf, 1.0]}, 100.0, "qk_clip: layer 'fused': the maximum of head 0 is inf"),
        ({"nothing": [1.0]}, 100.0, "qk_clip: layer 'nothing': not in qk_heads"),
        ({}, 0.0, "qk_clip: tau 0.0: expected a finite number above 0"),
        ({}, math.nan, "qk_clip: tau nan: expected a finite number above 0"),
        ([1.0], 100.0, "qk_clip: max_logits .*: expected a dict"),
    ],
)
def test_wrong_maxima_are_refused(given, tau: float, said: str) -> None:
    trained = Trained(alone, None, torch.float32, "nearest")
    with pytest.raises(ValueError, match=said):
        trained.optimizer.qk_clip(given, tau=tau)
    trained.step(1, None)  # nothing is left of it


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (QKHeads(4, 3, ()), "layer 'x': key_heads 3: expected a divisor of 4 heads"),
        (QKHeads(0, 1, ()), "layer 'x': heads 0: expected a whole number above 0"),
        (QKHeads.separate("q.weight", "w", heads=4, head_dim=4), "parameter 'w': not in the param groups"),
        (QKHeads.separate("q.weight", "k.weight", heads=4, head_dim=4), "'k.weight': rows up to 16, and it has 8"),
        (QKHeads.separate("q.weight", "q.weight", heads=4, head_dim=4), "'q.weight': row 0 belongs to two heads"),
        (QKHeads(1, 1, (HeadRows("q.weight", 0),)), "'q.weight': size 0: expected a whole number, at least 1"),
        (QKHeads(1, 1, (HeadRows("q.weight", 1, power=2.0),)), "power 2.0: expected 0.5 or 1"),
        ("q.weight", "layer 'x': 'q.weight': expected a QKHeads"),
    ],
)
def test_wrong_heads_are_refused_at_construction(heads, said: str) -> None:
    with pytest.raises(ValueError, match=f"qk_heads: layer 'x': .*{said}|qk_heads: {said}"):
        Trained(alone, None, torch.float32, "nearest", qk_heads={"x": heads})


def test_transposed_parameters_are_refused() -> None:
    model = nn.Linear(8, 8, bias=False)
    with pytest.raises(ValueError, match="parameter 'weight': output_dim 1: expected 0"):
        muster.torch.Muon(
            [{"params": [("weight", model.weight)], "output_dim": 1}],
            qk_heads={"x": QKHeads(1, 1, (HeadRows("weight", 8),))},
        )


def _one_rank_is_wrong(rank: int, ranks: int) -> str:
    trained = Trained(fsdp, dist.group.WORLD, torch.float32, "nearest")
    given = maxima(1, rank)
    if rank == 1:
        given["grouped"][2] = math.nan
    with pytest.raises(ValueError) as caught:
        trained.optimizer.qk_clip(given, tau=TAU)
    trained.step(1, None)
    with pytest.raises(ValueError, match="ranks disagree on its row_factors"):
        trained.optimizer.qk_clip(maxima(2, rank), tau=TAU + rank)
        trained.optimizer.step()
    with pytest.raises(ValueError, match="qk_heads: not the same on all ranks"):
        Trained(fsdp, dist.group.WORLD, torch.float32, "nearest", qk_heads=dict(list(HEADS.items())[rank:]))
    return str(caught.value)


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    said = run_ranks(2, _one_rank_is_wrong)
    assert said == [
        "qk_clip: another rank refused its maxima",
        "qk_clip: layer 'grouped': the maximum of head 2 is nan: expected a number below infinity",
    ]
