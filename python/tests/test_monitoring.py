"""Statistics per parameter: against float64, the same on any number of ranks, and written where users look."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import muster.torch


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 24), nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 24), nn.Linear(24, 13))


def _optimizer(model: nn.Module, **options: Any) -> muster.torch.NorMuon:
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    return muster.torch.NorMuon(groups, lr=0.02, weight_decay=0.1, **options)


def _gradients(model: nn.Module, step: int) -> None:
    """The same on any number of ranks."""
    for number, parameter in enumerate(model.parameters()):
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + number))
        if isinstance(parameter, DTensor):
            parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        else:
            parameter.grad = whole


def _orthogonality_error(update: torch.Tensor) -> float:
    """RMS of sigma^2 - 1 of what five steps of polar_express make of a matrix, in float64."""
    x = update.double()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / (1.02 * x.norm())
    for a, b, c in (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    error = x @ x.T - torch.eye(x.shape[0], dtype=torch.float64)
    return float((error.square().sum() / x.shape[0]).sqrt())


def _rms(values: torch.Tensor) -> float:
    return float(values.double().square().mean().sqrt())


@pytest.mark.parametrize("kind", [muster.torch.Muon, muster.torch.NorMuon])
def test_statistics_are_those_of_float64(kind: type[muster.torch.NorMuon]) -> None:
    model = _model()
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    opt = kind(groups, lr=0.02, weight_decay=0.1, wire="f32", monitor_every=1)
    momentum = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for step in range(3):
        before = {name: p.detach().double() for name, p in model.named_parameters()}
        _gradients(model, step)
        opt.step()
        stats = opt.parameter_stats()
        assert set(stats) == set(before)
        for name, p in model.named_parameters():
            grad = p.grad.double()
            assert stats[name].grad_norm == pytest.approx(float(grad.norm()), rel=1e-12)
            assert stats[name].weight_rms == pytest.approx(_rms(p.detach()), rel=1e-12)
            # The change is a difference of float32 values, rounded to float32.
            assert stats[name].update_rms == pytest.approx(_rms(p.detach().double() - before[name]), rel=1e-6)
            momentum[name].lerp_(grad, 1 - 0.95)
            if name in ("1.weight", "3.weight"):
                expected = _orthogonality_error(grad.lerp(momentum[name], 0.95))
                assert expected > 0.02
                assert stats[name].orthogonality_error == pytest.approx(expected, abs=1e-4)
            else:
                assert stats[name].orthogonality_error is None


def _steps(model: nn.Module, **options: Any) -> list[dict[str, muster.torch.ParameterStats]]:
    opt = _optimizer(model, monitor_every=1, **options)
    out = []
    for step in range(3):
        _gradients(model, step)
        opt.step()
        out.append(opt.parameter_stats())
    return out


def _sharded(rank: int, ranks: int) -> list[list[dict[str, muster.torch.ParameterStats]]]:
    runs = [_steps(_model()), _steps(_model(), replicate_state=False)]  # replicas
    model = _model()
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    return [*runs, _steps(model)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_many_ranks_report_the_bits_of_one(ranks: int) -> None:
    alone = _steps(_model())
    for runs in run_ranks(ranks, _sharded):
        assert runs == [alone] * 3


def test_only_every_so_many_steps_are_monitored_and_none_by_default() -> None:
    model = _model()
    opt = _optimizer(model)
    assert opt.parameter_stats() == {}

    def monitored() -> bool:
        _gradients(model, 0)
        opt.step()
        return bool(opt.parameter_stats())

    assert [monitored() for _ in range(2)] == [False] * 2
    opt.monitor_every = 3
    assert [monitored() for _ in range(5)] == [True, False, False, True, False]  # steps 3 to 7
    opt.monitor_every = 0
    assert [monitored() for _ in range(3)] == [False] * 3


def test_monitoring_changes_no_bit() -> None:
    watched, plain = _model(), _model()
    for model, every in ((watched, 1), (plain, 0)):
        opt = _optimizer(model, monitor_every=every)
        for step in range(3):
            _gradients(model, step)
            opt.step()
    for a, b in zip(watched.parameters(), plain.parameters()):
        assert torch.equal(a, b)


class _Board:
    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.rows[tag] = (value, step)


class _Run:
    def log(self, values: dict[str, float], step: int) -> None:
        self.values, self.step = values, step


def test_statistics_go_to_tensorboard_to_wandb_and_to_functions() -> None:
    model = _model()
    opt = _optimizer(model, monitor_every=2)
    board, run, called = _Board(), _Run(), []
    for step in range(1, 3):
        _gradients(model, step)
        opt.step()
        values = opt.log_stats(board, step)
        opt.log_stats(run, step)
        opt.log_stats(lambda values, step: called.append((values, step)), step, prefix="")
        assert bool(values) == (step == 2)
    stats = opt.parameter_stats()
    assert board.rows["optimizer/update_rms/1.weight"] == (stats["1.weight"].update_rms, 2)
    assert board.rows["optimizer/orthogonality_error/1.weight"] == (stats["1.weight"].orthogonality_error, 2)
    assert "optimizer/orthogonality_error/0.weight" not in board.rows
    total = sum(row.grad_norm**2 for row in stats.values()) ** 0.5
    assert board.rows["optimizer/grad_norm"][0] == pytest.approx(total, rel=1e-12)
    assert run.values == values and run.step == 2
    ((written, step),) = called
    assert step == 2 and written["weight_rms/0.weight"] == stats["0.weight"].weight_rms
    with pytest.raises(TypeError, match="writer int: expected add_scalar"):
        opt.log_stats(3, 2)


def test_a_skipped_step_has_no_statistics() -> None:
    model = _model()
    opt = _optimizer(model, monitor_every=1, non_finite="skip_step")
    _gradients(model, 0)
    model[1].weight.grad[0, 0] = float("nan")
    opt.step()
    assert opt.parameter_stats() == {}


@pytest.mark.parametrize("every", [-1, 1.5, "10", True])
def test_a_bad_number_of_steps_is_named(every: Any) -> None:
    with pytest.raises(ValueError, match="monitor_every .*: expected a whole number"):
        _optimizer(_model(), monitor_every=every)
    opt = _optimizer(_model())
    with pytest.raises(ValueError, match="monitor_every"):
        opt.monitor_every = every


def test_overlap_refuses_monitoring() -> None:
    with pytest.raises(ValueError, match="overlap=True: not with monitor_every=10"):
        _optimizer(_model(), monitor_every=10, overlap=True)


def test_a_copy_is_monitored_as_its_original() -> None:
    opt = _optimizer(_model(), monitor_every=7)
    assert copy.deepcopy(opt).monitor_every == 7


def _logs_alone(rank: int, ranks: int) -> int:
    """After a change of the groups rank 0 alone logs the step before: it waits for no other rank."""
    model = _model()
    opt = _optimizer(model, monitor_every=1)
    _gradients(model, 0)
    opt.step()
    opt.param_groups.reverse()
    opt.add_param_group({"params": [("more", nn.Parameter(torch.zeros(3)))], "algorithm": "adamw"})
    stats = opt.parameter_stats()
    assert stats["1.weight"].orthogonality_error is not None and stats["1.bias"].orthogonality_error is None
    return len(opt.log_stats(lambda values, step: None, 1)) if rank == 0 else 0


def test_rank_0_logs_alone_after_groups_have_changed() -> None:
    assert run_ranks(2, _logs_alone)[0] > 0


def _disagrees(rank: int, ranks: int) -> str:
    model = _model()
    opt = _optimizer(model, monitor_every=1 if rank == 0 else 0)
    _gradients(model, 0)
    with pytest.raises(ValueError) as raised:
        opt.step()
    return str(raised.value)


def test_ranks_that_disagree_about_monitoring_are_told() -> None:
    for message in run_ranks(2, _disagrees):
        assert "parameter_stats" in message
