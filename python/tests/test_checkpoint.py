"""torch.distributed.checkpoint: what four ranks save, any number loads."""

from __future__ import annotations

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts import Trained, alone, assert_same, fsdp, hsdp
from ranks import run_ranks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

LAYOUTS = {"fsdp": fsdp, "hsdp": hsdp, "alone": alone}


def _state(trained: Trained) -> dict:
    trained.optimizer.plan(verbose=False)  # before it there is no state, as with other optimizers before a step
    return {"model": trained.model.state_dict(), "optimizer": trained.optimizer.state_dict()}


def _by_torch(trained: Trained) -> dict:
    """As torch.distributed.checkpoint asks for it: by names."""
    model, optimizer = get_state_dict(trained.model, trained.optimizer)
    return {"model": model, "optimizer": optimizer}


def _save(rank: int, ranks: int, layout: str, folder: str) -> None:
    trained = Trained(LAYOUTS[layout], dist.group.WORLD)
    for step in range(1, 4):
        trained.step(step)
    for parameter in trained.model.parameters():
        parameter.grad = None  # or get_state_dict would not try to make a state
    dcp.save(_state(trained), checkpoint_id=f"{folder}/numbers")
    dcp.save(_by_torch(trained), checkpoint_id=f"{folder}/names")


def _load(rank: int, ranks: int, layout: str, keys: str, folder: str) -> None:
    single = [dist.new_group([r]) for r in range(ranks)][rank]
    reference = Trained(alone, single)
    for step in range(1, 4):
        reference.step(step)
    trained = Trained(LAYOUTS[layout], dist.group.WORLD)
    if keys == "numbers":
        state = _state(trained)
        dcp.load(state, checkpoint_id=f"{folder}/numbers")  # weights in place
        trained.optimizer.load_state_dict(state["optimizer"])
    else:
        state = _by_torch(trained)
        dcp.load(state, checkpoint_id=f"{folder}/names")
        set_state_dict(
            trained.model,
            trained.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    for step in range(4, 8):
        reference.step(step)
        trained.step(step)
    assert_same(trained, reference, f"{layout} on {ranks} ranks")


@pytest.mark.parametrize(
    "ranks, layout, keys",
    [(2, "fsdp", "numbers"), (3, "fsdp", "names"), (2, "hsdp", "names"), (2, "alone", "numbers")],
)
def test_training_continues_bit_for_bit_elsewhere(ranks: int, layout: str, keys: str, saved: str) -> None:
    run_ranks(ranks, _load, layout, keys, saved)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("dcp"))
    run_ranks(4, _save, "fsdp", folder)
    return folder
