"""state_dict and load_state_dict as torch has them: hooks, dtypes, missing entries, torch.distributed.checkpoint."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import muster.torch


def _model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 17), nn.Linear(17, 9, bias=False), nn.Linear(9, 6)).to(dtype)


def _optimizer(model: nn.Module, **options) -> muster.torch.NorMuon:
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    return muster.torch.NorMuon(groups, lr=0.05, **options)


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """With made-up gradients, the same in every layout."""
    for step in steps:
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(100 * step + number)
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(_whole(x), _whole(y)) for x, y in zip(a.parameters(), b.parameters()))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("form", ["nearest", "stochastic", "master", "mantissa"])
def test_states_of_bf16_weights_are_not_rounded(form: str) -> None:
    """torch's own load_state_dict would cast float32 momentum to the weights' dtype."""
    model, twin = _model(torch.bfloat16), _model(torch.bfloat16)
    optimizer = _optimizer(model, bf16_weights=form, seed=3)
    _steps(model, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"][0]["momentum"].dtype == torch.float32
    assert not torch.equal(saved["state"][0]["momentum"], saved["state"][0]["momentum"].bfloat16().float())
    twin.load_state_dict(model.state_dict())
    other = _optimizer(twin, bf16_weights=form)
    other.load_state_dict(saved)
    for number, entries in saved["state"].items():
        for name, value in entries.items():
            loaded = other.state_dict()["state"][number][name]
            assert loaded.dtype == value.dtype and torch.equal(loaded, value), name
    _steps(model, optimizer, range(3, 6))
    _steps(twin, other, range(3, 6))
    assert _same(model, twin)


def test_hooks_see_the_result_and_may_change_it() -> None:
    model = _model()
    optimizer = _optimizer(model)
    _steps(model, optimizer, range(1))
    weight = optimizer.param_groups[0]["params"][0]

    def before(each: torch.optim.Optimizer) -> None:
        each.state["mark"] = 1

    def after(each: torch.optim.Optimizer, state_dict: dict) -> dict:
        assert state_dict["state"][0]["momentum"] is each.state[weight]["momentum"]
        assert state_dict["state"].pop("mark") == 1
        return {**state_dict, "more": "of a hook"}

    handles = [optimizer.register_state_dict_pre_hook(before), optimizer.register_state_dict_post_hook(after)]
    state = optimizer.state_dict()
    assert state["more"] == "of a hook" and optimizer.state["mark"] == 1
    for handle in handles:
        handle.remove()
    seen = []
    momentum = torch.full_like(weight, 2.0)

    def replace(each: torch.optim.Optimizer, state_dict: dict) -> dict:
        entries = {**state_dict["state"][0], "momentum": momentum}
        return {**state_dict, "state": {**state_dict["state"], 0: entries}}

    optimizer.register_load_state_dict_pre_hook(replace)
    optimizer.register_load_state_dict_post_hook(lambda each: seen.append(each.state[weight]["momentum"].clone()))
    optimizer.load_state_dict(state)
    assert len(seen) == 1 and torch.equal(seen[0], momentum)


def test_what_is_taken_out_of_a_state_dict_stays_in_the_optimizer() -> None:
    model = _model()
    optimizer = _optimizer(model)
    _steps(model, optimizer, range(2))
    state = optimizer.state_dict()
    del state["state"][0]["momentum"]
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum"].any()


def test_missing_entries_start_from_zero_with_one_warning() -> None:
    model, twin = _model(), _model()
    optimizer, other = _optimizer(model), _optimizer(twin)
    _steps(model, optimizer, range(2))
    _steps(twin, other, range(2))
    state = copy.deepcopy(optimizer.state_dict())
    del state["state"][0]["momentum"], state["state"][3]
    with pytest.warns(UserWarning) as caught:
        other.load_state_dict(state)
    (warning,) = caught
    assert "missing and start from zero: 0.weight: momentum, 0.bias: first, 0.bias: second" in str(warning.message)
    assert warning.filename == __file__
    loaded = other.state_dict()["state"]
    assert not loaded[0]["momentum"].any() and not loaded[3]["second"].any() and loaded[0]["variance"].any()
    assert int(loaded[3]["updates"]) == 0 and int(loaded[3]["steps"]) == 2


def test_a_state_dict_without_state_is_a_fresh_start() -> None:
    model = _model()
    optimizer, fresh = _optimizer(model), _optimizer(_model())
    _steps(model, optimizer, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(fresh.state_dict())
    assert int(optimizer.state_dict()["state"][0]["steps"]) == 0
    assert not optimizer.state_dict()["state"][0]["momentum"].any()


def test_a_checkpoint_of_which_nothing_fits_is_refused() -> None:
    model = _model()
    optimizer = _optimizer(model)
    theirs = torch.optim.AdamW([{"params": g["params"]} for g in optimizer.param_groups])
    _steps(model, theirs, range(1))
    with pytest.raises(ValueError, match="none of its entries.*0.weight: .*import_torch"):
        optimizer.load_state_dict(theirs.state_dict())


def test_a_bad_state_dict_changes_nothing() -> None:
    model = _model()
    optimizer = _optimizer(model)
    _steps(model, optimizer, range(2))
    good = copy.deepcopy(optimizer.state_dict())
    for entry, value, match in (
        ("second", torch.ones(3), "'0.bias': second has shape"),
        ("second", torch.ones(17).to_sparse(), "'0.bias': second is torch.sparse"),
        ("second", [1.0], "'0.bias': second is a list"),
        ("second", torch.ones(17, dtype=torch.int32), "'0.bias': second is torch.int32"),
        ("steps", torch.tensor(9), "steps is 2 and, of '0.bias', 9"),
    ):
        bad = copy.deepcopy(good)
        bad["state"][0]["momentum"].fill_(7)
        bad["state"][3][entry] = value
        bad["param_groups"][0]["lr"] = 9.0
        with pytest.raises(ValueError, match=match):
            optimizer.load_state_dict(bad)
    assert optimizer.param_groups[0]["lr"] == 0.05
    for number, entries in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, good["state"][number][name]) for name, value in entries.items())


def test_flat_mean_squares_of_earlier_versions_are_taken() -> None:
    stack = nn.Parameter(torch.randn(3, 6, 4))
    optimizer = muster.torch.NorMuon([("stack", stack)])
    stack.grad = torch.randn(3, 6, 4)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    variance = state["state"][0]["variance"]
    assert variance.shape == (3, 6)
    state["state"][0]["variance"] = variance.flatten()
    optimizer.step()
    optimizer.load_state_dict(state)
    assert torch.equal(optimizer.state[stack]["variance"], variance)


def test_parameters_are_matched_by_name_where_both_sides_have_names() -> None:
    a, b = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    one, other = muster.torch.NorMuon([("a", a), ("b", b)]), muster.torch.NorMuon([("b", b), ("a", a)])
    unnamed = muster.torch.NorMuon([a, b])
    a.grad, b.grad = torch.eye(4), torch.ones(4, 4)
    one.step()
    for optimizer, place in ((other, 1), (unnamed, 0)):
        optimizer.load_state_dict(one.state_dict())
        assert torch.equal(optimizer.state[a]["momentum"], one.state[a]["momentum"])
        assert torch.equal(optimizer.state_dict()["state"][place]["momentum"], one.state[a]["momentum"])
    assert unnamed.param_groups[0]["param_names"] == ["a", "b"]
    assert other.param_groups[0]["param_names"] == ["b", "a"]
    renamed = muster.torch.NorMuon([("x", a), ("y", b)])
    renamed.load_state_dict(one.state_dict())
    assert torch.equal(renamed.state[b]["momentum"], one.state[b]["momentum"])
    part = muster.torch.NorMuon([("b", b), ("c", a)])
    with pytest.warns(UserWarning, match="start from zero: c: momentum, c: variance, c: updates"):
        part.load_state_dict(one.state_dict())
    assert torch.equal(part.state[b]["momentum"], one.state[b]["momentum"])


def test_groups_that_swapped_their_tensors_load_their_own_state() -> None:
    """The tensors of a state_dict are those of the optimizer: they must not be overwritten before they are read."""
    a, b = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimizer = muster.torch.NorMuon([a, b])
    a.grad, b.grad = torch.eye(4), torch.ones(4, 4)
    optimizer.step()
    state = optimizer.state_dict()
    first, second = (state["state"][i]["momentum"].clone() for i in (0, 1))
    state["state"] = {0: state["state"][1], 1: state["state"][0]}
    optimizer.load_state_dict(state)
    assert torch.equal(optimizer.state[a]["momentum"], second) and torch.equal(optimizer.state[b]["momentum"], first)


# torch.distributed.checkpoint. What two ranks save, three load.

FORMS = {
    "nested": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "full": StateDictOptions(full_state_dict=True),
}


def _sharded(model: nn.Sequential) -> nn.Module:
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _replicated(model: nn.Sequential) -> nn.Module:
    return DistributedDataParallel(model)


LAYOUTS = {"fsdp": _sharded, "ddp": _replicated}
VARIANTS = {
    "plain": (torch.float32, {}),
    "bf16": (torch.bfloat16, {"bf16_weights": "master", "every": 2}),
    "by_engine": (torch.float32, {"replicate_state": False}),
}


def _save(rank: int, ranks: int, layout: str, variant: str, folder: str) -> None:
    dtype, options = VARIANTS[variant]
    model = LAYOUTS[layout](_model(dtype))
    optimizer = _optimizer(model, **options)
    _steps(model, optimizer, range(3))
    for form, how in FORMS.items():
        state, states = get_state_dict(model, optimizer, options=how)
        dcp.save({"model": state, "optimizer": states}, checkpoint_id=f"{folder}/{form}")
    state, states = get_state_dict(model, optimizer)
    dcp.async_save({"model": state, "optimizer": states}, checkpoint_id=f"{folder}/async").result()
    _steps(model, optimizer, range(3, 6))
    if rank == 0 or layout == "fsdp":
        whole = {name: _whole(p.detach()) for name, p in getattr(model, "module", model).named_parameters()}
        if rank == 0:
            torch.save(whole, f"{folder}/expected.pt")


def _resume(rank: int, ranks: int, layout: str, variant: str, folder: str) -> None:
    dtype, options = VARIANTS[variant]
    for form in (*FORMS, "async"):
        how = FORMS.get(form, FORMS["nested"])
        model = LAYOUTS[layout](_model(dtype))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        optimizer = _optimizer(model, **options)
        state, states = get_state_dict(model, optimizer, options=how)
        loaded = {"model": state, "optimizer": states}
        dcp.load(loaded, checkpoint_id=f"{folder}/{form}")
        given = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"], "options": how}
        if (form, variant) == ("flat", "by_engine"):  # torch asks opt.state what to load, and that has no momentum
            with pytest.raises(ValueError, match="'0.weight'.*replicate_state=True"):
                set_state_dict(model, optimizer, **given)
            continue
        set_state_dict(model, optimizer, **given)
        _steps(model, optimizer, range(3, 6))
        expected = torch.load(f"{folder}/expected.pt")
        for name, parameter in getattr(model, "module", model).named_parameters():
            assert torch.equal(_whole(parameter.detach()), expected[name]), (form, name)


@pytest.mark.parametrize(
    ("layout", "variant"), [("fsdp", "plain"), ("fsdp", "bf16"), ("ddp", "plain"), ("ddp", "by_engine")]
)
def test_what_two_ranks_saved_three_resume_bit_for_bit(layout: str, variant: str, tmp_path) -> None:
    run_ranks(2, _save, layout, variant, str(tmp_path))
    run_ranks(3, _resume, layout, variant, str(tmp_path))


@pytest.mark.parametrize("form", ["nearest", "stochastic", "mantissa"])
def test_the_fake_step_of_torch_makes_state_and_leaves_weights_alone(form: str) -> None:
    """torch.distributed.checkpoint steps with gradients and learning rates of zero to learn what state there is."""
    model, start = _model(torch.bfloat16), _model(torch.bfloat16)
    optimizer = _optimizer(model, bf16_weights=form, weight_decay=0.1)
    state = get_optimizer_state_dict(model, optimizer)
    assert not state["state"]["0.weight"]["momentum"].any()
    assert _same(model, start) and optimizer.param_groups[0]["lr"] == 0.05


def _titan(rank: int, ranks: int) -> None:
    """As torchtitan's container: flat, into an optimizer that nothing has used, without a state_dict of it before."""
    model, twin = (_sharded(_model()) for _ in range(2))
    optimizer, fresh = _optimizer(model), _optimizer(twin)
    _steps(model, optimizer, range(3))
    flat = get_optimizer_state_dict(model, optimizer, options=FORMS["flat"])
    assert any(key.endswith("weight.momentum") for key in flat)
    flat = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in flat.items()}
    for mine, theirs in zip(twin.parameters(), model.parameters()):
        mine.detach().to_local().copy_(theirs.detach().to_local())
    set_optimizer_state_dict(twin, fresh, flat, options=FORMS["flat"])
    _steps(model, optimizer, range(3, 6))
    _steps(twin, fresh, range(3, 6))
    assert _same(model, twin)


def test_a_flat_state_dict_is_loaded_by_an_optimizer_that_was_not_used() -> None:
    run_ranks(2, _titan)


def _rank_0_saves(rank: int, ranks: int, folder: str) -> None:
    """As HF Trainer and Lightning save under DDP."""
    model, twin = (DistributedDataParallel(_model()) for _ in range(2))
    optimizer, resumed = _optimizer(model), _optimizer(twin)
    _steps(model, optimizer, range(3))
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/saved.pt")
    dist.barrier()
    saved = torch.load(f"{folder}/saved.pt")
    twin.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    _steps(model, optimizer, range(3, 6))
    _steps(twin, resumed, range(3, 6))
    assert _same(model, twin)


def test_rank_0_alone_saves_under_ddp(tmp_path) -> None:
    run_ranks(2, _rank_0_saves, str(tmp_path))
