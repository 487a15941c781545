"""A CommError names the ranks that are missing: those that never come, stop, die or are at another operation."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import muster
import muster.torch.ranks
from muster.torch import roll_call
from muster.torch.communicator import Messages, process_group_communicator
from muster.torch.ranks import Ranks

TIMEOUT = timedelta(seconds=3)
LIMIT = 60  # seconds: many times what a run takes, and less than the time that ten such errors take one by one


def _optimizer(**options) -> tuple[nn.Parameter, muster.torch.NorMuon]:
    weight = nn.Parameter(torch.ones(6, 4))
    return weight, muster.torch.NorMuon([("w", weight)], timeout=TIMEOUT, grad_sync=True, **options)


def _step(weight: nn.Parameter, optimizer: muster.torch.NorMuon) -> None:
    optimizer.zero_grad()
    (weight * torch.sin(weight.detach())).sum().backward()
    optimizer.step()


def _names(error: BaseException) -> list[int]:
    """All ranks that the error names, which has one line."""
    text = str(error)
    assert "\n" not in text
    return [int(number) for names in re.findall(r"ranks? (\d+(?:, \d+)*)", text) for number in names.split(", ")]


def _lacks(work: Callable[[], object], missing: int, pattern: str) -> None:
    with pytest.raises(muster.CommError, match=pattern) as caught:
        work()
    assert _names(caught.value) == [missing], str(caught.value)


def _all_but(missing: int, rank: int, ranks: int, work: Callable[[], object], pattern: str) -> None:
    """The missing rank is there, and does something else, until all others have their errors."""
    store = dist.distributed_c10d._get_default_store()
    ended = [f"rank {each} ended" for each in range(ranks)]
    others = [ended[each] for each in range(ranks) if each not in (rank, missing)]
    if rank == missing:
        store.wait(others)
    else:
        _lacks(work, missing, pattern)
    store.set(ended[rank], "")
    if rank == 0:  # the host of a TCP store leaves last
        store.wait(ended)


def _not_constructed(rank: int, ranks: int, missing: int) -> None:
    pattern = f"^construction: rank {missing} had not arrived after [3-9][.]. s "
    _all_but(missing, rank, ranks, _optimizer, pattern)


def _no_step(rank: int, ranks: int, missing: int, steps: int, options: dict) -> None:
    weight, optimizer = _optimizer(**options)
    for _ in range(steps):
        _step(weight, optimizer)
    pattern = f": rank {missing} had not arrived after [3-9][.]. s "
    _all_but(missing, rank, ranks, lambda: _step(weight, optimizer), pattern)


def _dies(rank: int, ranks: int, missing: int, steps: int, options: dict) -> None:
    weight, optimizer = _optimizer(**options)
    for _ in range(steps):
        _step(weight, optimizer)
    if rank == missing:
        os._exit(1)
    _lacks(lambda: _step(weight, optimizer), missing, f": rank {missing} died or left after ")


@pytest.mark.parametrize(("ranks", "missing"), [(3, 0), (3, 1), (4, 2)])
def test_a_rank_that_is_not_constructed_is_named(ranks: int, missing: int) -> None:
    run_ranks(ranks, _not_constructed, missing, timeout=LIMIT)


@pytest.mark.parametrize("options", [{}, {"overlap": True}], ids=str)
@pytest.mark.parametrize(("ranks", "missing", "steps"), [(3, 1, 0), (3, 0, 3), (4, 2, 3)])
def test_a_rank_that_stops_is_named(ranks: int, missing: int, steps: int, options: dict) -> None:
    run_ranks(ranks, _no_step, missing, steps, options, timeout=LIMIT)


@pytest.mark.parametrize("options", [{}, {"overlap": True}], ids=str)
@pytest.mark.parametrize(("ranks", "missing", "steps"), [(3, 1, 0), (3, 0, 3), (4, 2, 3)])
def test_a_rank_that_dies_is_named(ranks: int, missing: int, steps: int, options: dict) -> None:
    run_ranks(ranks, _dies, missing, steps, options, timeout=LIMIT, may_die=missing)


def _over_tcp(rank: int, ranks: int, port: int, worker: Callable[..., None], *args: object) -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=ranks)
    worker(rank, ranks, *args)


@pytest.mark.parametrize("missing", [0, 2])  # rank 0 is the host of the store
def test_a_rank_is_named_with_a_tcp_store(missing: int) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    if missing != 0:
        run_ranks(3, _over_tcp, port, _no_step, missing, 2, {}, timeout=LIMIT)
    run_ranks(3, _over_tcp, port, _dies, missing, 2, {}, timeout=LIMIT, may_die=missing)


def _without_a_store(rank: int, ranks: int) -> None:
    roll_call._store = lambda _: None
    _not_constructed(rank, ranks, 1)


def test_a_rank_is_named_without_a_store() -> None:
    run_ranks(2, _without_a_store, timeout=LIMIT)


def _by_torch(rank: int, ranks: int) -> None:
    """As over NCCL alone."""
    muster.torch.ranks.moves_host_memory = lambda _: False
    world = Ranks(dist.new_group(timeout=TIMEOUT), TIMEOUT)
    pattern = "^construction: rank 1 had not arrived after "
    _all_but(1, rank, ranks, lambda: world.gather("construction", rank), pattern)


def test_a_rank_is_named_by_a_collective_of_torch() -> None:
    run_ranks(3, _by_torch, timeout=LIMIT)


def _in_a_ring(rank: int, ranks: int) -> None:
    """Rank 0 waits for rank 1, which came later and waits for rank 2: it has no error yet when rank 0 has."""
    messages, room = Messages(dist.group.WORLD, TIMEOUT), torch.zeros(4)

    def receive() -> None:
        time.sleep(rank * 2.5)
        messages.post("ring", [], [(rank + 1, room.data_ptr(), 16)])()

    _all_but(2, rank, ranks, receive, "^rank 2 had not arrived after [3-9][.]. s ")


def test_a_rank_that_only_waits_for_the_missing_one_is_not_named() -> None:
    run_ranks(3, _in_a_ring, timeout=LIMIT)


def _dies_after_a_wait(rank: int, ranks: int) -> None:
    """Its report that it waits for rank 0 may still be there."""
    communicator = process_group_communicator(dist.group.WORLD, TIMEOUT)
    if rank == 0:
        time.sleep(1.5)
    communicator.barrier("slow")
    if rank == 2:
        os._exit(1)
    _lacks(lambda: communicator.barrier("next"), 2, "^barrier 'next': rank 2 died or left after ")


def test_a_rank_that_waited_and_then_died_is_named() -> None:
    run_ranks(3, _dies_after_a_wait, timeout=LIMIT, may_die=2)


def _elsewhere(rank: int, ranks: int) -> None:
    communicator = process_group_communicator(dist.group.WORLD, TIMEOUT)
    mine, other = ("save", "step 3") if rank == 2 else ("step 3", "save")
    with pytest.raises(muster.CommError, match=f"^barrier '{mine}': .* is at barrier '{other}'") as caught:
        communicator.barrier(mine)
    assert _names(caught.value) == ([0, 1] if rank == 2 else [2])


def test_a_rank_at_another_operation_is_named_with_it() -> None:
    run_ranks(3, _elsewhere, timeout=LIMIT)
