"""torch.distributed.checkpoint in all its forms: nested, flat, full and async, on another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts import Trained, alone, assert_same, ep_fsdp, fsdp, tp
from ranks import run_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

LAYOUTS = {layout.__name__: layout for layout in (alone, fsdp, tp, ep_fsdp)}
FORMS = {
    "nested": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "async": StateDictOptions(flatten_optimizer_state_dict=True),
    "full": StateDictOptions(full_state_dict=True, cpu_offload=True),
}


def _state(trained: Trained, form: str) -> dict[str, Any]:
    for parameter in trained.model.parameters():
        parameter.grad = None  # or torch would not make a state for an optimizer that has none
    model, optimizer = get_state_dict(trained.model, trained.optimizer, options=FORMS[form])
    return {"model": model, "optimizer": optimizer}


def _save(rank: int, ranks: int, layout: str, form: str, folder: str) -> None:
    trained = Trained(LAYOUTS[layout], dist.group.WORLD)
    for step in range(1, 4):
        trained.step(step)
    state = _state(trained, form)
    if form == "full":
        if rank == 0:
            torch.save(state, f"{folder}/full.pt")
    elif form == "async":
        saving = dcp.async_save(state, checkpoint_id=folder)
        trained.step(4)  # it writes a copy
        saving.result()
    else:
        dcp.save(state, checkpoint_id=folder)


def _load(rank: int, ranks: int, layout: str, form: str, folder: str, steps_before: int) -> None:
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    reference = Trained(alone, single)
    for step in range(1, 4):
        reference.step(step)
    trained = Trained(LAYOUTS[layout], dist.group.WORLD)
    for step in range(100, 100 + steps_before):
        trained.step(step)
    if form == "full":
        state = torch.load(f"{folder}/full.pt", weights_only=True)
    else:
        state = _state(trained, form)
        dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        trained.model,
        trained.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=FORMS[form],
    )
    for step in range(4, 8):
        reference.step(step)
        trained.step(step)
    assert_same(trained, reference, f"{layout} on {ranks} ranks, {form}")


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    "saved, saved_on, loaded, loaded_on, steps_before",
    [
        ("fsdp", 2, "fsdp", 3, 0),
        ("ep_fsdp", 4, "tp", 2, 0),
        ("alone", 2, "fsdp", 3, 2),
    ],
)
def test_training_continues_bit_for_bit(
    tmp_path: Path, form: str, saved: str, saved_on: int, loaded: str, loaded_on: int, steps_before: int
) -> None:
    run_ranks(saved_on, _save, saved, form, str(tmp_path))
    run_ranks(loaded_on, _load, loaded, form, str(tmp_path), steps_before)
