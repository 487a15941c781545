"""The golden rule: many ranks give the bits of one, whatever the layout."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from layouts import Trained, alone, assert_same, fsdp, layouts
from ranks import run_ranks

STEPS = 20


def _own_group(rank: int, ranks: int) -> dist.ProcessGroup:
    return [dist.new_group([r]) for r in range(ranks)][rank]


def _every_layout(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    for layout in layouts(ranks):
        reference = Trained(alone, single)
        trained = Trained(layout, dist.group.WORLD, waves=2)
        for step in range(1, STEPS + 1):
            reference.step(step)
            trained.step(step)
        assert_same(trained, reference, f"{layout.__name__} on {ranks} ranks")
        assert trained.optimizer.grad_norm() == reference.optimizer.grad_norm(), layout.__name__
        assert trained.optimizer.clip_grad_norm(0.5) == reference.optimizer.clip_grad_norm(0.5)
        assert trained.optimizer.grad_norm() == reference.optimizer.grad_norm() < 0.51


def _missing_on_one_rank(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    reference = Trained(alone, single)
    trained = Trained(fsdp, dist.group.WORLD)
    numbers: list = [None] * ranks
    dist.all_gather_object(numbers, trained.numbers)
    last = numbers[-1]
    names = ("up.weight", "experts", "embedding.weight")
    for step in range(1, STEPS + 1):
        trained.step(step, lambda name, mine: None if rank == ranks - 1 and name in names else torch.ones(mine.shape))
        # Zero where the last rank had none.
        reference.step(
            step,
            lambda name, all: 1.0 - torch.isin(all, last[name]).float() if name in names else torch.ones(all.shape),
        )
    assert_same(trained, reference, "grads missing on one rank")


def _state_moves_between_layouts(rank: int, ranks: int) -> None:
    single = _own_group(rank, ranks)
    reference = Trained(alone, single)
    trained = Trained(fsdp, dist.group.WORLD)
    for step in range(1, 4):
        reference.step(step)
        trained.step(step)
    state = trained.optimizer.state_dict()
    # Into a plain optimizer on one rank, which has the weights already.
    resumed = Trained(alone, single)
    for mine, theirs in zip(resumed.model.parameters(), reference.model.parameters()):
        mine.data.copy_(theirs.data)
    whole = {
        number: {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in entries.items()}
        for number, entries in state["state"].items()
    }
    resumed.optimizer.load_state_dict({**state, "state": whole})
    # And back.
    trained.optimizer.load_state_dict(state)
    for step in range(4, 7):
        for each in (reference, trained, resumed):
            each.step(step)
    assert_same(trained, reference, "loaded its own state")
    for name, weight in resumed.weights().items():
        assert torch.equal(weight, reference.weights()[name]), name


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_layout_gives_the_bits_of_one_process(ranks: int) -> None:
    run_ranks(ranks, _every_layout)


def test_gradients_missing_on_one_rank_are_zero_there() -> None:
    run_ranks(3, _missing_on_one_rank)


def test_state_moves_between_layouts() -> None:
    run_ranks(2, _state_moves_between_layouts)
