"""What a training loop does with an optimizer, on one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import muster.torch


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 13))


def _loss(model: nn.Module, seed: int = 0) -> torch.Tensor:
    tokens = torch.randint(0, 13, (64,), generator=torch.Generator().manual_seed(seed))
    return nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 13)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    for step in steps:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(model, step)
        loss.backward()
        optimizer.step()
    return loss.item()


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))


def test_default_groups_train(capsys: pytest.CaptureFixture[str]) -> None:
    model = _model()
    groups = muster.torch.param_groups(model, adamw_lr=0.01)
    assert [name for name, _ in groups[0]["params"]] == ["1.weight", "3.weight"]
    assert "2 parameters of 256 elements to the matrix optimizer" in capsys.readouterr().out
    optimizer = muster.torch.NorMuon(groups, lr=0.02)
    before = _loss(model).item()
    assert _train(model, optimizer, range(60)) < before / 4
    assert optimizer.stats()["step"] == 60
    assert optimizer.plan()["ranks"] == 1
    assert "strategy global" in capsys.readouterr().out
    assert "strategy global" in str(optimizer.plan(verbose=False)) and not capsys.readouterr().out


class _Vision(nn.Module):
    """Positions of an image, and as many of them as a block is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 16, 16))
        self.places = nn.Embedding(16, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.up = nn.ConvTranspose2d(4, 6, 3)
        self.words = nn.Embedding(40, 16)
        self.to_words = nn.Linear(16, 40)


def test_default_groups_go_by_what_is_unmistakable() -> None:
    model = _Vision()
    model.head = torch.compile(nn.Linear(16, 5))  # type: ignore[assignment]
    groups = muster.torch.param_groups(model, verbose=False)
    names = [[name for name, _ in group["params"]] for group in groups]
    assert names[0] == ["blocks.0.weight", "blocks.1.weight"]
    assert names[1] == ["up.weight"] and groups[1]["output_dim"] == 1
    assert {"positions", "places.weight", "words.weight", "to_words.weight"} < set(names[2])
    assert any(name.startswith("head.") and name.endswith("weight") for name in names[2])


@pytest.mark.parametrize("algorithm", ["normuon", "adamw"])
def test_weights_that_were_set_count_whatever_their_master_says(algorithm: str) -> None:
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.bfloat16))
    optimizer = muster.torch.NorMuon([{"params": [weight], "algorithm": algorithm}], bf16_weights="master", lr=1e-3)
    for value in (5.0, -3.0):
        with torch.no_grad():
            weight[:, :3] = value
        weight.grad = torch.ones_like(weight)
        before = weight.detach().float()
        optimizer.step()
        assert torch.allclose(weight.float(), before, atol=0.05)
    for _ in range(100):  # each too small for bf16 to show
        optimizer.step()
    assert (weight[:, :3] < -3).all()


def test_convolutions_are_read_as_matrices() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(4))
    model(torch.zeros(1, 3, 5, 5))
    optimizer = muster.torch.Muon(muster.torch.param_groups(model, verbose=False), lr=0.1)
    model(torch.randn(4, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    assert optimizer.plan()["rounds"] == 1


def test_closure_returns_its_loss() -> None:
    model = _model()
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(model)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


def test_resumes_bit_for_bit(tmp_path) -> None:
    model = _model()
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False), lr=0.02)
    _train(model, optimizer, range(3))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    optimizer.save(str(tmp_path / "checkpoint"))
    _train(model, optimizer, range(3, 6))

    resumed = _model()
    saved = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(saved["model"])
    other = muster.torch.NorMuon(muster.torch.param_groups(resumed, verbose=False), lr=0.5)
    other.load_state_dict(saved["optimizer"])
    assert other.param_groups[0]["lr"] == 0.02
    _train(resumed, other, range(3, 6))
    assert _same(model, resumed)

    other.load(str(tmp_path / "checkpoint"))  # weights too
    _train(resumed, other, range(3, 6))
    assert _same(model, resumed)


def test_missing_state_starts_from_zero() -> None:
    model = _model()
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    _train(model, optimizer, range(2))
    state = optimizer.state_dict()
    del state["state"][0]["momentum"]
    with pytest.warns(UserWarning, match="start from zero: 1.weight: momentum$"):
        optimizer.load_state_dict(state)
    loaded = optimizer.state_dict()["state"]
    assert not loaded[0]["momentum"].any()
    assert torch.equal(loaded[2]["first"], state["state"][2]["first"]) and loaded[2]["first"].any()


def test_groups_can_be_added() -> None:
    model, twin = _model(), _model()
    groups = muster.torch.param_groups(model, verbose=False)
    optimizer = muster.torch.NorMuon(groups[:1])
    both = muster.torch.NorMuon(muster.torch.param_groups(twin, verbose=False))
    for p in twin[0].parameters():
        p.requires_grad_(False)
    optimizer.add_param_group(groups[1])
    _train(model, optimizer, range(2))
    optimizer.add_param_group({"params": [("extra", nn.Parameter(torch.zeros(3)))], "algorithm": "lion"})
    for p in model[0].parameters():
        p.requires_grad_(False)
    assert len(optimizer.param_groups) == 3
    state = optimizer.state_dict()["state"]
    assert state[0]["momentum"].any() and int(state[0]["updates"]) == 2
    assert len(both.param_groups) == 2


def test_frozen_and_unused_parameters_sit_out() -> None:
    model = _model()
    groups = muster.torch.param_groups(model, verbose=False)  # of all of them: param_groups leaves out what is frozen
    model[1].weight.requires_grad_(False)
    before = copy.deepcopy(model[1].weight)
    optimizer = muster.torch.NorMuon(groups, weight_decay=0.1)
    _train(model, optimizer, range(2))
    assert torch.equal(before, model[1].weight)
    model[1].weight.requires_grad_(True)
    _train(model, optimizer, range(2))
    assert not torch.equal(before, model[1].weight)


@pytest.mark.parametrize("bf16_weights", ["nearest", "mantissa"])
def test_parameters_that_move_are_followed(bf16_weights: str) -> None:
    model, twin = _model().bfloat16(), _model().bfloat16()
    optimizers = [
        muster.torch.NorMuon(muster.torch.param_groups(m, verbose=False), bf16_weights=bf16_weights)
        for m in (model, twin)
    ]
    for step in range(4):
        for each, optimizer in zip((model, twin), optimizers):
            _train(each, optimizer, range(step, step + 1))
        model[1].weight.data = model[1].weight.data.clone()
    assert _same(model, twin)
    assert optimizers[0].stats()["step"] == 4


def test_loss_scaling_skips_steps_that_overflow() -> None:
    model = _model()
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor, moves in ((1.0, True), (float("inf"), False)):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        scaler.scale(_loss(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert _same(before, model) != moves


def _misuse(make, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_bad_input_names_the_parameter() -> None:
    w = lambda *shape, **options: nn.Parameter(torch.zeros(*shape, **options))  # noqa: E731

    def normuon(*args, **options) -> None:
        muster.torch.NorMuon(*args, **options).plan(verbose=False)

    _misuse(lambda: normuon([("gain", w(4))]), "'gain'.*adamw")
    _misuse(lambda: normuon([("w", w(4, 6, 3, 3))]), "'w'.*flatten=True")
    _misuse(lambda: normuon([("w", w(4, 4, dtype=torch.float64))]), "'w'.*float64")
    _misuse(lambda: normuon([("w", w(4, 4))], algorithm="sgd"), "'w'.*'sgd'")
    _misuse(lambda: normuon([("w", w(4, 4))], lr=-1.0), "'w'.*lr -1")
    _misuse(lambda: normuon([("w", w(4, 4))], momentum=float("nan")), "'w'.*momentum nan")
    _misuse(lambda: normuon([("w", w(4, 4))], lr_mul=float("inf")), "'w'.*lr_mul inf")
    _misuse(lambda: normuon([("w", w(4, 4))], weigth_decay=1.0), "weigth_decay")
    _misuse(lambda: normuon([("w", w(4, 4))], heads=3), "'w'.*4 rows in 3 heads")
    _misuse(lambda: normuon([("w", w(4, 4))], split_rows=[3, 3]), "'w'")
    _misuse(lambda: normuon([("w", w(4, 4))], view=(3, 5)), "'w'")
    memory = torch.zeros(40)
    overlap = [("a", nn.Parameter(memory[:24].view(4, 6))), ("b", nn.Parameter(memory[20:].view(4, 5)))]
    _misuse(lambda: normuon(overlap), "'a' and 'b' share memory")


def test_bad_steps_change_nothing() -> None:
    weight = nn.Parameter(torch.zeros(4, 4))
    optimizer = muster.torch.NorMuon([("w", weight)], non_finite="error")
    weight.grad = torch.full((4, 4), float("nan"))
    _misuse(optimizer.step, "'w'")
    weight.grad = torch.eye(4).to_sparse()
    _misuse(optimizer.step, "'w'.*sparse")
    weight.grad = torch.eye(4)
    optimizer.param_groups[0]["lr"] = float("nan")
    _misuse(optimizer.step, "lr nan")
    optimizer.param_groups[0]["lr"] = 0.1
    assert not weight.any()
    optimizer.step()
    assert weight.any()


def test_what_a_group_says_counts_at_every_step() -> None:
    """However it is changed: in place too, and back again after a step that was refused."""
    lr = torch.tensor(0.1)
    started = torch.linspace(-1, 1, 16).reshape(4, 4)
    changing = {"lr": lr, "betas": [0.9, 0.95], "coefficients": [[3.4445, -4.775, 2.0315] for _ in range(5)]}
    plain = {"lr": 0.1, "betas": (0.9, 0.95), "coefficients": "jordan"}
    weights = [nn.Parameter(started.clone()) for _ in range(2)]
    one, other = (muster.torch.NorMuon([w], **{**options, "every": 1}) for w, options in zip(weights, (changing, plain)))

    def step(number: int) -> bool:
        for weight, optimizer in zip(weights, (one, other)):
            weight.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(number))
            optimizer.step()
        return torch.equal(*weights)

    assert step(0)
    lr.mul_(0.5)
    one.param_groups[0]["betas"][1] = 0.5
    assert not step(1)
    weights[0].data.copy_(weights[1].data)
    one.load_state_dict(other.state_dict())
    other.param_groups[0].update(lr=0.05, betas=(0.9, 0.5))
    one.param_groups[0].update(lr=lr, betas=[0.9, 0.5])
    assert step(2)
    for group in (one.param_groups[0], other.param_groups[0]):
        group.update(lr=0.2, scale="none")
    assert step(3)
    other.param_groups[0].update(lr=0.7, scale="nothing")
    _misuse(other.step, "scale 'nothing'")
    other.param_groups[0].update(lr=0.2, scale="none")
    assert step(4)


def test_hooks_and_profilers_see_steps() -> None:
    weight = nn.Parameter(torch.zeros(4, 4))
    optimizer = muster.torch.NorMuon([weight])
    weight.grad = torch.eye(4)
    seen = []
    optimizer.step()
    before = optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    after = optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.step()
    before.remove()
    after.remove()
    everybody = register_optimizer_step_pre_hook(lambda *_: seen.append("any"))
    optimizer.step()
    everybody.remove()
    optimizer.step()
    assert seen == ["before", "after", "any"]
    for all_threads in (False, True):
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, experimental_config=config) as profile:
            optimizer.step()
        assert any(event.key == "Optimizer.step#NorMuon.step" for event in profile.key_averages())
    assert optimizer.stats()["step"] == 6


def test_a_loaded_group_keeps_what_a_plan_was_made_for() -> None:
    model, twin = _model(), _model()
    muon = muster.torch.Muon([("a", model[1].weight), ("b", model[3].weight)], lr=0.5)
    normuon = muster.torch.NorMuon([("x", twin[1].weight), ("y", twin[3].weight)], lr=0.1, lr_mul=2.0)
    normuon.load_state_dict(muon.state_dict())
    group = normuon.param_groups[0]
    assert (group["algorithm"], group["lr_mul"], group["lr"]) == ("normuon", 2.0, 0.5)
    assert group["param_names"] == ["x", "y"]
    normuon.add_param_group({"params": [("z", twin[4].weight)]})
    muon.plan(verbose=False)
    broken = muon.state_dict()
    broken["state"][0]["momentum"] = torch.zeros(3)
    broken["param_groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match="group"):
        normuon.load_state_dict(broken)
    broken["param_groups"].append({**broken["param_groups"][0], "params": [2]})
    with pytest.raises(ValueError, match="'x': momentum has shape"):
        normuon.load_state_dict(broken)
    assert normuon.param_groups[0]["lr"] == 0.5 and len(normuon.param_groups) == 2
    unnamed = muster.torch.NorMuon([_model()[1].weight])
    unnamed.load_state_dict(muster.torch.Muon([("a", model[1].weight)]).state_dict())
    assert unnamed.param_groups[0]["param_names"] == ["a"]


def test_what_makes_no_sense_is_refused() -> None:
    weight = nn.Parameter(torch.ones(8, 3, 3, 3))
    weight.grad = torch.ones_like(weight)
    optimizer = muster.torch.NorMuon([("w", weight)], flatten=True, heads=2)
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="max_norm"):
            optimizer.clip_grad_norm(bad)
    with pytest.raises(ValueError, match=r"of 'w'.*every 1\.5"):
        muster.torch.NorMuon([("w", weight)], every=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'w': view \(216,\)"):
        muster.torch.NorMuon([("w", weight)], view=(216,), heads=2).plan(verbose=False)


def test_wrong_checkpoints_are_refused() -> None:
    def make(*shape: int) -> muster.torch.NorMuon:
        optimizer = muster.torch.NorMuon([("w", nn.Parameter(torch.ones(*shape)))])
        optimizer.plan(verbose=False)
        return optimizer

    _misuse(lambda: make(4, 4).load_state_dict(make(4, 5).state_dict()), "'w': momentum has shape")
    foreign = torch.optim.SGD([torch.ones(1)], momentum=0.9).state_dict()
    foreign["state"] = {0: {"square_avg": torch.ones(1)}}
    _misuse(lambda: make(4, 4).load_state_dict(foreign), "none of its entries.*w: square_avg")
    _misuse(lambda: make(4, 4).load_state_dict({}), "state")


def test_sets_that_cap_singular_values() -> None:
    """Momentum that is nearly of rank one comes out nearer to orthogonal than with five steps."""

    def step(coefficients: object) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.zeros(48, 64))
        rest = 3e-3 * torch.randn(48, 64, generator=generator)
        weight.grad = torch.outer(torch.randn(48, generator=generator), torch.randn(64, generator=generator)) + rest
        groups = [{"params": [weight], "algorithm": "muon", "lr": 1.0, "coefficients": coefficients, "scale": "none"}]
        muster.torch.Muon(groups).step()
        return torch.linalg.svdvals(weight.detach())

    errors = {name: (step(name) - 1).square().mean().sqrt() for name in ("polar_express", "capped3", "capped4")}
    assert errors["capped3"] < 0.5 * errors["polar_express"]
    assert errors["capped4"] < 0.5 * errors["polar_express"]


def test_a_custom_set_names_a_sketch_that_does_not_exist() -> None:
    group = muster._muster.Group()
    group.coefficients = muster._muster.Coefficients("mine", [[2.0, -1.5, 0.5]], sketch=64)
    group.validate()
    assert group.coefficients.sketch == 64
    group.coefficients = muster._muster.Coefficients("mine", [[2.0, -1.5, 0.5]], sketch=5)
    with pytest.raises(ValueError, match='coefficients "mine": sketch 5, expected 0, 32'):
        group.validate()
