"""How communicators of NCCL are made, shared and given up, with the process group in place of NCCL."""

from __future__ import annotations

import contextlib
import gc
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

import muster
from muster.torch import communicator as module
from muster.torch.communicator import Link, process_group_communicator
from muster.torch.ranks import Ranks

DEVICE, TIMEOUT = torch.device("cuda:0"), timedelta(seconds=20)


class _Fake:
    """Stands for the engine's module: everything but NCCL is the real thing."""

    def __init__(self, works: bool = True) -> None:
        self.works, self.made = works, 0

    def __getattr__(self, name: str):
        return getattr(muster._muster, name)

    def nccl_available(self) -> bool:
        return True

    def make_nccl_id(self) -> bytes:
        self.made += 1
        return bytes([self.made]) * 128

    def make_nccl_communicator(self, identity: bytes, rank: int, size: int, timeout: float, device: int):
        group = dist.new_group(list(range(size)))  # whatever fails there, the world goes on
        if not self.works:
            raise muster.CommError("no NCCL today")
        assert (rank, size, device) == (dist.get_rank(), dist.get_world_size(), 0)
        return process_group_communicator(group, timedelta(seconds=timeout))


def _share(rank: int, ranks: int) -> None:
    world = Ranks(dist.group.WORLD, TIMEOUT)
    hasty = Ranks(dist.group.WORLD, timedelta(seconds=2))
    module._muster = _Fake()
    torch.cuda.device = lambda _: contextlib.nullcontext()
    first = Link(world, DEVICE)
    assert first.name == "nccl"
    # Of another group of the same ranks, which is another object.
    second = Link(Ranks(dist.new_group(list(range(ranks))), TIMEOUT), DEVICE)
    assert second.communicator is first.communicator
    # Not all ranks have it still.
    if rank == 0:
        del first, second
        gc.collect()
    third = Link(world, DEVICE)
    assert rank == 0 or third.communicator is not second.communicator
    # One that failed, as one rank knows, is not given out again.
    fourth = Link(hasty, DEVICE)
    assert fourth.communicator is not third.communicator, "another timeout"
    if rank == 1:
        fourth.communicator.abort("it is over")
    fifth = Link(hasty, DEVICE)
    assert fifth.communicator is not fourth.communicator
    fifth.communicator.barrier("works")

    module._muster = _Fake(works=rank == 0)
    other = Ranks(dist.group.WORLD, timedelta(seconds=3))
    with pytest.raises(muster.CommError, match="rank 1: no NCCL today"):
        Link(other, DEVICE, "nccl")
    with pytest.warns(UserWarning, match="rank 1: no NCCL today"):
        link = Link(other, DEVICE)
    assert link.name == "process_group"
    link.communicator.barrier("works")


def test_ranks_share_communicators_by_what_a_group_contains() -> None:
    run_ranks(2, _share)
