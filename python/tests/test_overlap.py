"""Steps that begin in backward: the bits of those that do not, and what is refused."""

from __future__ import annotations

import copy
import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import muster
import muster.torch


class _Slow(torch.autograd.Function):
    """Takes its time in backward, as a large model would."""

    @staticmethod
    def forward(context, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: torch.Tensor):
        time.sleep(context.seconds)
        return gradient, None


class _Model(nn.Module):
    """The embedding is the head, and one layer is used twice."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(13, 8)
        self.first, self.twice, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8, bias=False)
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.never = nn.Parameter(torch.ones(6, 4))
        self.seconds = seconds

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = _Slow.apply(self.first(self.embedding(tokens)).relu(), self.seconds)
        x = _Slow.apply(self.twice(x).relu(), self.seconds)
        x = _Slow.apply(self.twice(x).relu(), self.seconds)
        return self.head(_Slow.apply(self.last(x), self.seconds))


def _loss(model: nn.Module, step: int, rank: int = 0, ranks: int = 1) -> torch.Tensor:
    tokens = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
    return nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13)


def _optimizer(model: nn.Module, **options) -> muster.torch.NorMuon:
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    return muster.torch.NorMuon(groups, **{"lr": 0.02, "waves": 3, **options})


def _train(model: nn.Module, optimizer: muster.torch.NorMuon, steps: range, rank: int = 0, ranks: int = 1) -> list[int]:
    """How many waves began early, a step."""
    early = []
    for step in steps:
        optimizer.zero_grad()
        _loss(model, step, rank, ranks).backward()
        optimizer.step()
        early.append(optimizer.stats()["early_waves"])
    return early


def _same(a: nn.Module, b: nn.Module) -> bool:
    local = muster.torch.layout.local
    return all(torch.equal(local(x), local(y)) for x, y in zip(a.parameters(), b.parameters()))


def test_a_step_in_backward_gives_the_same_bits() -> None:
    """Also for a parameter that is used twice, and one that never is."""
    model, twin, start = _Model(), _Model(), _Model()
    early = _train(model, _optimizer(model, overlap=True), range(6))
    _train(twin, _optimizer(twin), range(6))
    assert early == [0, 2, 2, 2, 2, 2]  # the first backward is watched
    assert _same(model, twin)
    assert not _same(model, start)


def test_waves_are_cut_in_the_order_of_backward() -> None:
    model = _Model()
    optimizer = _optimizer(model, overlap=True)
    _train(model, optimizer, range(2))
    names = [name for name, _ in model.named_parameters()]
    order = [names.index(optimizer.names[number]) for number in optimizer._overlap.order]
    assert [names[i] for i in order] == [
        "last.weight",
        "twice.bias",
        "twice.weight",
        "first.bias",
        "first.weight",
        "embedding.weight",
    ]


def test_a_state_and_a_group_from_before_the_first_step_are_kept() -> None:
    model, twin = _Model(), _Model()
    before, plain = _optimizer(model), _optimizer(twin)
    _train(model, before, range(3))
    _train(twin, plain, range(3))
    optimizer = _optimizer(model, overlap=True)
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    assert max(_train(model, optimizer, range(3, 6))) == 2
    _train(twin, plain, range(3, 6))
    more = [nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
    for parameter, each in zip(more, (optimizer, plain)):
        each.add_param_group({"params": [("more", parameter)]})
    for parameter, m, each in zip(more, (model, twin), (optimizer, plain)):
        for step in range(6, 9):
            each.zero_grad()
            (_loss(m, step) + parameter.square().sum()).backward()
            each.step()
    assert optimizer.stats()["early_waves"] > 0
    assert _same(model, twin)
    assert torch.equal(*more)
    assert optimizer.state_dict()["state"][0]["updates"] == plain.state_dict()["state"][0]["updates"]


def test_a_closure_and_a_schedule_work() -> None:
    model, twin = _Model(), _Model()
    for m, options in ((model, {"overlap": True}), (twin, {})):
        optimizer = _optimizer(m, **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for step in range(4):

            def closure(m=m, step=step) -> torch.Tensor:
                m.zero_grad()
                loss = _loss(m, step)
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
    assert _same(model, twin)


def _accumulate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    _loss(model, 1).backward()


def _clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def _drop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def _schedule(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


LATE = [
    (_accumulate, "'last.weight' came again.*one backward per step"),
    (_clip, "was changed after backward; clipping"),
    (_drop, "was changed after backward"),
]


@pytest.mark.parametrize(("late", "match"), LATE)
def test_what_needs_all_gradients_is_refused_in_the_first_step(late, match: str) -> None:
    """Before anything was changed: it goes on."""
    model, twin = _Model(), _Model()
    optimizer = _optimizer(model, overlap=True)
    _loss(model, 0).backward()
    late(model, optimizer)
    with pytest.raises(ValueError, match=match):
        optimizer.step()
    assert _same(model, twin)
    assert _train(model, optimizer, range(3))[1:] == [2, 2]
    _train(twin, _optimizer(twin), range(3))
    assert _same(model, twin)


@pytest.mark.parametrize(("late", "match"), [*LATE, (_schedule, "group 0: its hyperparameters have changed since")])
def test_a_step_that_went_wrong_is_not_taken_for_whole(late, match: str, tmp_path) -> None:
    model = _Model()
    optimizer = _optimizer(model, overlap=True)
    _train(model, optimizer, range(2))
    optimizer.save(tmp_path / "good")
    good = copy.deepcopy(model)
    optimizer.zero_grad()
    _loss(model, 2).backward()
    late(model, optimizer)
    with pytest.raises(ValueError, match=match):
        optimizer.step()
    for call in (optimizer.step, optimizer.state_dict):
        with pytest.raises(muster.CommError, match="step 3 broke off"):
            call()
    optimizer.load(tmp_path / "good")
    assert _same(model, good)
    _train(model, optimizer, range(2, 4))


def test_groups_that_change_before_backward_are_followed() -> None:
    """Its first backward is watched again, and the state goes on."""
    model, twin = _Model(), _Model()
    optimizer, plain = _optimizer(model, overlap=True), _optimizer(twin)
    for each, its in ((model, optimizer), (twin, plain)):
        _train(each, its, range(2))
        params = its.param_groups[0]["params"]
        place = next(i for i, p in enumerate(params) if p is each.last.weight)
        params[place] = each.last.weight = nn.Parameter(each.last.weight.detach().clone())
    assert max(_train(model, optimizer, range(2, 6))) == 2
    _train(twin, plain, range(2, 6))
    assert _same(model, twin)


def test_groups_that_change_within_a_step_are_refused() -> None:
    model = _Model()
    optimizer = _optimizer(model, overlap=True)
    _train(model, optimizer, range(2))
    optimizer.zero_grad()
    _loss(model, 2).backward()
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(4, 4)))
    with pytest.raises(ValueError, match="param groups were changed after backward"):
        optimizer.step()
    with pytest.raises(muster.CommError, match="step 3 broke off"):
        optimizer.step()


def test_what_cannot_be_had_together_is_refused() -> None:
    model = _Model()
    for policy in ("error", "skip_step", "zero"):
        with pytest.raises(ValueError, match=f"overlap=True: not with non_finite='{policy}'"):
            _optimizer(model, overlap=True, non_finite=policy)
    with pytest.raises(ValueError, match="overlap: strategy megabatch fixes its own waves"):
        _optimizer(model, overlap=True, strategy="megabatch", waves=0).plan(verbose=False)
    optimizer = _optimizer(model, overlap=True)
    for call in (optimizer.grad_norm, lambda: optimizer.clip_grad_norm(1.0)):
        with pytest.raises(ValueError, match="overlap=True: not with clipping"):
            call()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(_loss(model, 0)).backward()
    with pytest.raises(ValueError, match="overlap=True: not with GradScaler"):
        scaler.step(optimizer)
    _train(model, optimizer, range(2))
    optimizer.zero_grad()
    _loss(model, 2).backward()
    with pytest.raises(ValueError, match="step 3 is under way"):
        optimizer.state_dict()
    optimizer.step()


def test_a_weight_that_backward_still_needs_is_an_error() -> None:
    """Not a wrong gradient: the first use of the weight has no gradient of it, and comes last."""
    w, v = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))
    other = [nn.Parameter(torch.eye(4)) for _ in range(4)]
    optimizer = muster.torch.Muon([("w", w), ("v", v), *((f"o{i}", p) for i, p in enumerate(other))], overlap=True)
    x = torch.randn(4, 4)

    def loss() -> torch.Tensor:
        y = (x @ v) @ w.detach()
        for p in other:
            y = y @ p
        return (y @ w).square().sum()

    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss().backward()


class _Recomputed(_Model):
    """A layer whose activations are computed again, both times that it is used, and maybe another."""

    def __init__(self, reentrant: bool, last: bool) -> None:
        super().__init__()
        self.reentrant, self.last_too = reentrant, last

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(self.embedding(tokens))
        for _ in range(2):
            x = checkpoint(lambda y: self.twice(y.relu()), x, use_reentrant=self.reentrant)
        x = checkpoint(self.last, x, use_reentrant=self.reentrant) if self.last_too else self.last(x)
        return self.head(x)


@pytest.mark.parametrize(("reentrant", "last"), [(False, False), (False, True), (True, False)])
def test_parameters_may_be_used_in_what_is_computed_again(reentrant: bool, last: bool) -> None:
    """Where it is reentrant, a gradient comes once a use, each time from a backward within the other."""
    model, twin = _Recomputed(reentrant, last), _Recomputed(reentrant, last)
    assert max(_train(model, _optimizer(model, overlap=True), range(4))) == 2
    _train(twin, _optimizer(twin), range(4))
    assert _same(model, twin)


def test_a_backward_within_backward_that_comes_first_is_refused() -> None:
    """Its end is taken for that of the whole."""
    model, twin = _Recomputed(True, True), _Recomputed(True, True)
    with pytest.raises(ValueError, match="came again after it was used.*use_reentrant=False"):
        _train(model, _optimizer(model, overlap=True), range(1))
    assert _same(model, twin)


# Several ranks.


def _release(rank: int, ranks: int) -> None:
    """Hooks do not keep an optimizer."""
    model = _Model()
    optimizer = _optimizer(model, overlap=True, grad_sync=True)
    _train(model, optimizer, range(2), rank, ranks)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    _loss(model, 0).backward()
    dist.barrier()


def test_an_optimizer_is_released_with_its_hooks() -> None:
    run_ranks(2, _release)
