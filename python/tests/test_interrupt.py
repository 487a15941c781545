"""Ctrl-C ends a step that waits for another rank."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import muster.torch


def _interrupted(rank: int, ranks: int, overlap: bool) -> None:
    # Far more than the test may take: no timeout ends the wait.
    weight = nn.Parameter(torch.ones(6, 4))
    optimizer = muster.torch.NorMuon(
        [("w", weight)], timeout=timedelta(minutes=30), grad_sync=True, overlap=overlap
    )

    def step() -> None:
        optimizer.zero_grad()
        (weight * torch.sin(weight.detach())).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    store = dist.distributed_c10d._get_default_store()
    if rank != 0:
        store.wait(["interrupted"])
        with pytest.raises(muster.CommError):
            step()
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        step()
    store.set("interrupted", "")
    with pytest.raises(muster.CommError):  # the group is of no use any more
        optimizer.step()


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_ends_a_waiting_step(overlap: bool) -> None:
    """The main thread waited in Gloo, where signals are not handled: Ctrl-C took effect when the other rank arrived."""
    run_ranks(2, _interrupted, overlap, timeout=120)
