"""Rules of the user on whole matrices: the bits of one rank on many, state, and errors on one rank."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from layouts import Trained, alone, assert_same, fsdp, layouts
from ranks import run_ranks

import muster.torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "torch" / "rules"))
import ada_muon  # noqa: E402
import muon_plus  # noqa: E402
from ada_muon import AdaMuon  # noqa: E402
from muon_plus import MuonPlus  # noqa: E402

RULES = {"muon_plus": MuonPlus, "ada_muon": AdaMuon}
STEPS = 6


def _trained(layout, group, rule, **options) -> Trained:
    return Trained(layout, group, make=muster.torch.MatrixOptimizer, rule=rule, **options)


def _own_group(rank: int, ranks: int) -> dist.ProcessGroup:
    return [dist.new_group([r]) for r in range(ranks)][rank]


def _every_layout(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    for name, rule in RULES.items():
        for layout in layouts(ranks):
            reference = _trained(alone, single, rule())
            trained = _trained(layout, dist.group.WORLD, rule(), waves=2)
            for step in range(1, STEPS + 1):
                reference.step(step)
                trained.step(step)
            assert_same(trained, reference, f"{name}, {layout.__name__} on {ranks} ranks")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_layouts_give_the_bits_of_one_rank(ranks):
    run_ranks(ranks, _every_layout)


def _save(rank: int, ranks: int, folder: str) -> None:
    trained = _trained(fsdp, dist.group.WORLD, AdaMuon())
    for step in range(1, 4):
        trained.step(step)
    trained.optimizer.save(folder)


def _resume(rank: int, ranks: int, folder: str) -> None:
    reference = _trained(alone, _own_group(rank, ranks), AdaMuon())
    for step in range(1, 6):
        reference.step(step)
    resumed = _trained(fsdp, dist.group.WORLD, AdaMuon())
    resumed.optimizer.load(folder)
    for step in range(4, 6):
        resumed.step(step)
    assert_same(resumed, reference, f"saved on 4 ranks, resumed on {ranks}")


def test_state_saved_on_four_ranks_resumes_on_three(tmp_path):
    run_ranks(4, _save, str(tmp_path / "checkpoint"))
    run_ranks(3, _resume, str(tmp_path / "checkpoint"))


def _state_dict(rank: int, ranks: int) -> None:
    trained, resumed = (_trained(fsdp, dist.group.WORLD, AdaMuon()) for _ in range(2))
    for step in range(1, 3):
        trained.step(step)
    state = trained.optimizer.state_dict()
    entries = state["state"][0]
    assert entries["rule.square"].shape == (3, 18, 8) or entries["rule.square"].numel() == 18 * 8
    assert entries["rule.square"].abs().sum() > 0
    for mine, theirs in zip(resumed.model.parameters(), trained.model.parameters()):
        muster.torch.layout.local(mine.detach()).copy_(muster.torch.layout.local(theirs.detach()))
    resumed.optimizer.load_state_dict(state)
    for step in range(3, 5):
        trained.step(step)
        resumed.step(step)
    for mine, theirs in zip(resumed.model.parameters(), trained.model.parameters()):
        assert torch.equal(muster.torch.layout.local(mine), muster.torch.layout.local(theirs))


def test_state_dict_has_the_state_of_the_rule():
    run_ranks(2, _state_dict)


class Failing(muster.torch.Rule):
    """Fails once, on rank 1 in the second step."""

    state = {"sum": ("rows",)}

    def __init__(self) -> None:
        self.failed = dist.get_rank() != 1

    def update(self, u, state, group, step):
        state["sum"] += u.sum(-1)
        if step == 2 and not self.failed:
            self.failed = True
            raise ValueError("no luck\ntoday")
        return u + state["sum"].unsqueeze(-1)


class Summing(Failing):
    def __init__(self) -> None:
        self.failed = True


def _one_fails(rank: int, ranks: int) -> None:
    trained = _trained(fsdp, dist.group.WORLD, Failing())
    trained.step(1)
    state = copy.deepcopy(trained.optimizer.state_dict())
    weights = copy.deepcopy(trained.weights())
    if rank == 1:
        with pytest.raises(ValueError, match="no luck\ntoday") as raised:
            trained.step(2)
        assert raised.traceback[-1].name == "update"
    else:
        with pytest.raises(muster._muster.CommError, match="step 2 broke off: rank 1: rule 'Failing' on .*no luck today"):
            trained.step(2)
    with pytest.raises(muster._muster.CommError, match="broke off"):
        trained.step(3)
    for name, mine in trained.weights().items():
        mine.copy_(weights[name])
    trained.optimizer.load_state_dict(state)
    reference = _trained(alone, _own_group(rank, ranks), Summing())
    for step in (1, 2, 3):
        reference.step(step)
        if step > 1:
            trained.step(step)
    assert_same(trained, reference, "after a failure")


def test_an_exception_on_one_rank_breaks_the_step_off_on_all():
    run_ranks(3, _one_fails)


class Shaped(muster.torch.Rule):
    def update(self, u, state, group, step):
        return u.mT.contiguous() if u.size(1) != u.size(2) else u


class Half(muster.torch.Rule):
    def update(self, u, state, group, step):
        return u.half()


@pytest.mark.parametrize("module", [ada_muon, muon_plus])
def test_the_examples_learn(module):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    optimizer = module.make(model)
    data = torch.randn(64, 8)
    losses = []
    for _ in range(60):
        loss = (model(data) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def one(rule, shape=(4, 3), **options):
    weight = torch.nn.Parameter(torch.ones(shape))
    weight.grad = torch.arange(weight.numel(), dtype=torch.float32).reshape(shape) - 3
    return weight, muster.torch.MatrixOptimizer([("w", weight)], rule=rule, **options)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Shaped(), r"rule 'Shaped', tried on 4 x 3 of 'w': ValueError: update\(\) returned \(1, 3, 4\)"),
        (Half(), r"update\(\) returned \(1, 4, 3\) of torch.float16 on cpu, expected \(1, 4, 3\) of torch.float32"),
        (muster.torch.Rule(), "NotImplementedError: Rule.update"),
    ],
)
def test_a_trial_call_finds_wrong_results(rule, text):
    weight, optimizer = one(rule)
    with pytest.raises(ValueError, match=text):
        optimizer.step()
    assert torch.equal(weight, torch.ones(4, 3))


class Nan(muster.torch.Rule):
    def update(self, u, state, group, step):
        u[..., 0, 0] = float("nan")
        return u


def test_nan_follows_the_policy():
    weight, optimizer = one(Nan(), non_finite="error")
    with pytest.raises(RuntimeError, match="it returned NaN or infinity for parameter 'w'"):
        optimizer.step()
    weight, optimizer = one(Nan(), non_finite="zero")
    optimizer.step()
    assert weight[0, 0] == 1
    assert weight[0, 1] != 1


class Mixing(muster.torch.Rule):
    batched = True
    check_batches = True
    state = {"seen": ("rows",)}

    def update(self, u, state, group, step):
        state["seen"] += 1
        return u - u.mean(0)


class Batched(AdaMuon):
    batched = True
    check_batches = True

    def update(self, u, state, group, step):
        return torch.cat([super(Batched, self).update(*self._one(u, state, i), group, step) for i in range(len(u))])

    def _one(self, u, state, i):
        return u[i : i + 1], {name: value[i : i + 1] for name, value in state.items()}


def test_batches_are_compared_with_single_matrices():
    _, optimizer = one(Mixing(), (3, 4, 2))
    with pytest.raises(ValueError, match="batched=True, but matrix 0 of a batch of 3 has other bits alone"):
        optimizer.step()
    results = []
    for rule in (Batched(), AdaMuon()):
        weight, optimizer = one(rule, (3, 4, 2))
        optimizer.step()
        optimizer.step()
        results.append(weight.detach())
    assert torch.equal(*results)


class Seen(muster.torch.Rule):
    own_momentum = True
    state = {"rows": ("rows",), "left": ("rows", "rows")}

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def update(self, u, state, group, step):
        self.seen.append((u.clone(), torch.get_num_threads(), group["lr"], step, {k: v.shape for k, v in state.items()}))
        return u


def test_a_rule_gets_gradients_state_threads_group_and_step():
    rule = Seen()
    weight, optimizer = one(rule, lr=0.25, wire="f32", scale="none")
    torch.set_num_threads(2)
    try:
        optimizer.step()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    u, threads, lr, step, shapes = rule.seen[-1]
    assert torch.equal(u[0], weight.grad)
    assert torch.equal(weight, 1 - 0.25 * weight.grad)
    assert (threads, lr, step) == (1, 0.25, 1)
    assert shapes == {"rows": (1, 4), "left": (1, 4, 4)}
    assert not any("momentum" in key for key in optimizer.state_dict()["state"][0])


def test_what_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="expected an object of a class derived from muster.torch.Rule"):
        one(MuonPlus)
    wrong = Seen()
    wrong.state = {"a": ("heads",)}
    with pytest.raises(ValueError, match="rule Seen: state 'a' has shape"):
        one(wrong)
    with pytest.raises(ValueError, match="strategy megabatch cannot plan"):
        one(Seen(), strategy="megabatch")[1].step()
