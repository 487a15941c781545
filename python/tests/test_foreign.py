"""Training goes on from checkpoints of other optimizers, as it would have with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from dion_reference import Reference
from ranks import run_ranks
from test_parity import _difference, _newton_schulz
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import muster.torch

STEPS = 20
MATRICES = [(24, 24), (64, 16), (16, 48)]
OTHERS = [(7,), (5, 6)]


def _draw(shapes, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _set_gradients(parameters, seed: int) -> None:
    for parameter, gradient in zip(parameters, _draw([p.shape for p in parameters], seed)):
        parameter.grad = gradient


def _torch_pair(parameters, **options) -> list[torch.optim.Optimizer]:
    muon = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 4}
    adamw = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1, "eps": 1e-6}
    return [
        torch.optim.Muon(parameters[: len(MATRICES)], **{**muon, **options}),
        torch.optim.AdamW(parameters[len(MATRICES) :], **adamw),
    ]


def _ours(parameters) -> muster.torch.Muon:
    """With hyperparameters that are all wrong: the checkpoint has the right ones."""
    matrices, others = parameters[: len(MATRICES)], parameters[len(MATRICES) :]
    return muster.torch.Muon([{"params": matrices}, {"params": others, "algorithm": "adamw"}], lr=3.0, wire="f32")


def _switch(give_state) -> float:
    """Half of the steps by torch, half by us from what it saved; against all of them by torch."""
    start = _draw(MATRICES + OTHERS, 0)
    parameters, twins = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    theirs, throughout = _torch_pair(parameters), _torch_pair(twins)
    steppers: list[torch.optim.Optimizer] = theirs
    for step in range(STEPS):
        if step == STEPS // 2:
            ours = _ours(parameters)
            muster.torch.import_torch(ours, *give_state(theirs))
            steppers = [ours]
        _set_gradients(parameters, step + 1)
        _set_gradients(twins, step + 1)
        for optimizer in (*steppers, *throughout):
            optimizer.step()
    return _difference([p.detach() for p in parameters], [p.detach() for p in twins])


def test_training_goes_on_from_torch_muon_and_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", _newton_schulz)
    # As in test_parity: weights of 1, 10 steps, each of some roundings of 2^-24 that Newton-Schulz enlarges.
    assert _switch(lambda optimizers: [o.state_dict() for o in optimizers]) < 5e-6


def test_training_goes_on_from_torch_muon_as_it_is() -> None:
    # torch orthogonalizes in bfloat16: 1 % or so of elements that "rms" makes 0.2, in 10 steps of 0.02.
    assert _switch(lambda optimizers: [o.state_dict() for o in optimizers]) < 5e-3


def test_parameters_are_matched_by_name() -> None:
    a, b = (nn.Parameter(w) for w in _draw([(6, 4), (4, 6)], 0))
    theirs = torch.optim.Muon([("b", b), ("a", a)], lr=0.5)
    _set_gradients([a, b], 1)
    theirs.step()
    ours = muster.torch.NorMuon([{"params": [("a", a)]}, {"params": [("b", b)]}])
    muster.torch.import_torch(ours, theirs.state_dict())
    state = ours.state_dict()
    for number, parameter in enumerate((a, b)):
        assert torch.equal(state["state"][number]["momentum"], theirs.state[parameter]["momentum_buffer"])
        assert not state["state"][number]["variance"].any()
    assert [group["lr"] for group in ours.param_groups] == [0.5, 0.5]
    assert ours.param_groups[0]["coefficients"] == "jordan"
    assert not {"ns_steps", "adjust_lr_fn"} & set(ours.param_groups[0])
    with pytest.raises(ValueError, match="'b'.*has a"):
        muster.torch.import_torch(muster.torch.NorMuon([("a", a)]), theirs.state_dict())
    checkpoint = theirs.state_dict()
    checkpoint["param_groups"][0]["adjust_lr_fn"] = "mine"
    with pytest.raises(ValueError, match="adjust_lr_fn 'mine'"):
        muster.torch.import_torch(ours, checkpoint)


def _dion_groups(weights: list[torch.Tensor]) -> list[dict[str, Any]]:
    square, tall, wide, stack, fused, vector, table = weights
    return [
        {
            "params": [square, tall, wide],
            "lr": 0.02,
            "mu": 0.9,
            "weight_decay": 0.1,
            "cautious_wd": True,
            "nesterov": True,
        },
        {"params": [stack], "adjust_lr": "rms_norm", "muon_beta2": 0.8},
        {"params": [fused], "split_sizes": [12, 6, 6]},
        {"params": [vector], "algorithm": "adamw", "epsilon": 1e-6},
        {"params": [table], "algorithm": "lion", "lr": 1e-3},
    ]


DION_SHAPES = [(24, 24), (40, 16), (16, 40), (3, 12, 8), (24, 16), (9,), (5, 6)]


def _ours_for_dion(parameters, **options) -> muster.torch.NorMuon:
    square, tall, wide, stack, fused, vector, table = parameters
    groups: list[dict[str, Any]] = [
        {"params": [("square", square), ("tall", tall), ("wide", wide)]},
        {"params": [("stack", stack)]},
        {"params": [("fused", fused)], "split_rows": [12, 6, 6]},
        {"params": [("vector", vector)], "algorithm": "adamw"},
        {"params": [("table", table)], "algorithm": "lion"},
    ]
    return muster.torch.NorMuon(groups, **{"lr": 3.0, "wire": "f32", "normalize": "rows", **options})


def _from_dion(reference: Reference, parameters, **options) -> muster.torch.NorMuon:
    ours = _ours_for_dion(parameters, **options)
    muster.torch.import_dion(ours, reference.state_dict())
    return ours


@pytest.mark.parametrize("momentum_form", ["ema", "sum"])
@pytest.mark.parametrize("algorithm", ["normuon", "muon"])
def test_training_goes_on_from_dion(algorithm: str, momentum_form: str) -> None:
    groups = _dion_groups(_draw(DION_SHAPES, 0))
    for group in groups[:3]:
        group["algorithm"] = algorithm
    reference = Reference(groups)
    for step in range(STEPS // 2):
        reference.step(_draw(DION_SHAPES, step + 1))
    parameters = [nn.Parameter(w.float()) for w in reference.weights]
    ours = _from_dion(reference, parameters, algorithm=algorithm, momentum_form=momentum_form)
    for step in range(STEPS // 2, STEPS):
        _set_gradients(parameters, step + 1)
        reference.step([p.grad for p in parameters])
        ours.step()
    # Float32 against float64, in weights of 1.
    assert _difference([p.detach() for p in parameters], [w.float() for w in reference.weights]) < 1e-5
    assert ours.stats()["step"] == STEPS


def _sharded_dion(rank: int, ranks: int) -> None:
    """As Dion saves under FSDP2: momentum and mean squares are DTensors, sharded by rows."""
    reference = Reference(_dion_groups(_draw(DION_SHAPES, 0)))
    for step in range(3):
        reference.step(_draw(DION_SHAPES, step + 1))
    state = reference.state_dict()
    mesh = init_device_mesh("cpu", (ranks,))
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    whole = [nn.Parameter(w.float()) for w in reference.weights]
    spread = [nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])) for p in whole]
    plain, sharded = _ours_for_dion(whole, process_group=single), _ours_for_dion(spread)
    muster.torch.import_dion(plain, state)
    for entries in state["state"].values():
        for key, value in entries.items():
            entries[key] = distribute_tensor(value, mesh, [Shard(0)]) if value.ndim else value
    muster.torch.import_dion(sharded, state)
    for mine, theirs in zip(plain.state_dict()["state"].values(), sharded.state_dict()["state"].values()):
        for key, value in mine.items():
            other = theirs[key]
            assert torch.equal(value, other.full_tensor() if hasattr(other, "full_tensor") else other), key


def test_sharded_states_of_dion_are_imported() -> None:
    run_ranks(2, _sharded_dion)


@pytest.mark.parametrize("ours", [muster.torch.Muon, muster.torch.NorMuon])
def test_adamw_of_a_matrix_is_refused_with_a_remedy(ours: type[muster.torch.NorMuon]) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    adamw = torch.optim.AdamW([("w", weight)])
    with pytest.raises(ValueError, match=r"^parameter 'w'.*load the weights and start fresh, or.*algorithm='adamw'$"):
        muster.torch.import_torch(ours([("w", weight)]), adamw.state_dict())


def test_what_has_no_counterpart_is_refused() -> None:
    reference = Reference(_dion_groups(_draw(DION_SHAPES, 0)))
    parameters = [nn.Parameter(w.float()) for w in reference.weights]
    with pytest.raises(ValueError, match=r"'wide'.*normalize='rows'"):
        _from_dion(reference, parameters, normalize="longer")
    state = reference.state_dict()
    state["param_groups"][2]["split_sizes"] = [8, 8, 8]
    with pytest.raises(ValueError, match="'fused'.*split_rows"):
        muster.torch.import_dion(_ours_for_dion(parameters), state)
    state = reference.state_dict()
    state["param_groups"][3]["algorithm"] = "lion"
    with pytest.raises(ValueError, match="'vector'.*lion.*adamw.*start fresh.*algorithm='lion'"):
        muster.torch.import_dion(_ours_for_dion(parameters), state)
    state["param_groups"] = state["param_groups"][:3]
    with pytest.raises(ValueError, match="5 parameters.*has 7"):
        muster.torch.import_dion(_ours_for_dion(parameters), state)
    adamw = torch.optim.AdamW([nn.Parameter(torch.ones(3))], amsgrad=True)
    ours = muster.torch.Muon([("gain", nn.Parameter(torch.ones(3)))], algorithm="adamw")
    with pytest.raises(ValueError, match="amsgrad"):
        muster.torch.import_torch(ours, adamw.state_dict())
    with pytest.raises(ValueError, match="neither"):
        muster.torch.import_torch(ours, torch.optim.SGD([nn.Parameter(torch.ones(3))]).state_dict())
    with pytest.raises(ValueError, match="not of Dion"):
        muster.torch.import_dion(ours, adamw.state_dict())
    with pytest.raises(ValueError, match="no 'state'"):
        muster.torch.import_torch(ours, {})
