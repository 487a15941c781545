"""A forked child inherits an optimizer without its threads: it may drop it and end, and a step in it raises."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import muster.torch

LIMIT = 30  # seconds until a child counts as hanging


def _optimizer(**options) -> tuple[nn.Parameter, muster.torch.NorMuon]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 64))
    optimizer = muster.torch.NorMuon([("w", weight)], threads=2, **options)
    weight.grad = torch.sin(weight.detach())
    optimizer.step()
    return weight, optimizer


def _in_child(work: Callable[[], None]) -> None:
    """Runs it in a fork of this process; raises if it does, or does not end."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def _raises(optimizer: muster.torch.NorMuon) -> None:
    for call in (optimizer.step, optimizer.grad_norm, lambda: optimizer.save("nowhere")):
        with pytest.raises(muster.Error, match="^this optimizer belongs to process .* is a fork of it"):
            call()


def test_a_step_in_a_forked_child_raises() -> None:
    weight, optimizer = _optimizer()
    before = weight.detach().clone()

    def child() -> None:
        _raises(optimizer)
        assert torch.equal(weight, before)

    _in_child(child)
    optimizer.step()
    assert not torch.equal(weight, before)


def test_a_forked_child_drops_an_optimizer() -> None:
    held = [*_optimizer()]

    def child() -> None:
        held.clear()
        gc.collect()

    _in_child(child)
    held[1].step()


def test_a_forked_child_ends_python_with_an_optimizer() -> None:
    """Not by os._exit: the interpreter is torn down, and the optimizer with it."""
    script = """
import os, sys, torch, muster.torch
weight = torch.nn.Parameter(torch.randn(64, 64))
optimizer = muster.torch.NorMuon([("w", weight)], threads=2)
weight.grad = torch.ones(64, 64)
optimizer.step()
child = os.fork()
if child == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
optimizer.step()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert (ended.returncode, ended.stderr) == (0, "")


def _with_ranks(rank: int, ranks: int, options: dict) -> None:
    weight, optimizer = _optimizer(grad_sync=True, timeout=timedelta(seconds=10), **options)
    held = [optimizer]
    del optimizer

    def child() -> None:
        with pytest.raises(RuntimeError, match="is a fork of it"):
            held[0].step()
        held.clear()
        gc.collect()

    _in_child(child)
    dist.barrier()
    held[0].step()


@pytest.mark.parametrize("options", [{}, {"overlap": True}], ids=str)
def test_ranks_go_on_after_a_child_of_theirs_tried_a_step(options: dict) -> None:
    run_ranks(2, _with_ranks, options, timeout=120)
