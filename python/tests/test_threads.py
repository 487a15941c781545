"""One thread at a time, and one process: other calls raise, or wait where that is sound."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import muster.torch


def _optimizer(size: int = 16, **options) -> tuple[nn.Parameter, muster.torch.NorMuon]:
    weight = nn.Parameter(torch.randn(size, size, generator=torch.Generator().manual_seed(0)))
    return weight, muster.torch.NorMuon([("w", weight)], **options)


class _Held:
    """A thread that is inside a step until it is told to go on."""

    def __init__(self, optimizer: muster.torch.NorMuon) -> None:
        self.errors: list[BaseException] = []
        inside, self._go_on = threading.Event(), threading.Event()
        built = optimizer._ready()
        original = built.gradients.addresses

        def addresses() -> list[int]:
            inside.set()
            assert self._go_on.wait(60)
            return original()

        built.gradients.addresses = addresses
        self._thread = threading.Thread(target=self._run, args=(optimizer.step,))
        self._thread.start()
        assert inside.wait(60)
        built.gradients.addresses = original

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def release(self) -> None:
        self._go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and not self.errors


def test_a_call_from_another_thread_names_the_call_in_progress(tmp_path: Path) -> None:
    weight, optimizer = _optimizer()
    weight.grad = torch.ones_like(weight)
    held = _Held(optimizer)
    state = {"state": {}, "param_groups": []}
    for name, call in (
        ("step", optimizer.step),
        ("state_dict", optimizer.state_dict),
        ("load_state_dict", lambda: optimizer.load_state_dict(state)),
        ("grad_norm", optimizer.grad_norm),
        ("clip_grad_norm", lambda: optimizer.clip_grad_norm(1.0)),
        ("plan", optimizer.plan),
        ("stats", optimizer.stats),
        ("synchronize", optimizer.synchronize),
        ("load", lambda: optimizer.load(tmp_path)),
        ("add_param_group", lambda: optimizer.add_param_group({"params": []})),
        ("consolidate_state_dict", optimizer.consolidate_state_dict),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: another thread is in step"):
            call()
    held.release()
    optimizer.step()
    assert optimizer.stats()["step"] == 2


def test_hooks_and_closures_may_call_the_optimizer() -> None:
    weight, optimizer = _optimizer()
    optimizer.register_step_post_hook(lambda each, *_: each.state_dict())

    def closure() -> float:
        weight.grad = torch.ones_like(weight)
        return optimizer.clip_grad_norm(1.0)

    assert optimizer.step(closure) == pytest.approx(16.0)


def test_saves_of_another_thread_come_between_steps(tmp_path: Path) -> None:
    """Each is of one step: the weights that it has are those after as many steps as it says."""
    weight, optimizer = _optimizer(64)
    after: dict[int, torch.Tensor] = {}
    over = threading.Event()
    saved: list[Path] = []
    errors: list[BaseException] = []

    def save() -> None:
        try:
            while not over.is_set():
                folder = tmp_path / f"checkpoint{len(saved)}"
                optimizer.save(folder)
                saved.append(folder)
        except BaseException as error:
            errors.append(error)

    weight.grad = torch.ones_like(weight)
    optimizer.step()
    after[1] = weight.detach().clone()
    thread = threading.Thread(target=save)
    thread.start()
    step = 1
    while len(saved) < 20 and not errors:
        step += 1
        weight.grad = torch.sin(weight.detach() * 9)
        optimizer.step()
        after[step] = weight.detach().clone()
    over.set()
    thread.join(60)
    assert not errors and not thread.is_alive()
    for folder in saved:
        other, resumed = _optimizer(64)
        resumed.load(folder)
        steps = int(resumed.state[other]["steps"])
        assert torch.equal(other, after[steps])
    assert len(saved) >= 20


def test_a_step_waits_for_a_save(tmp_path: Path) -> None:
    weight, optimizer = _optimizer()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with optimizer._use.call("save"):
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive() and optimizer.stats()["step"] == 1
    thread.join(60)
    assert optimizer.stats()["step"] == 2


def _many_ranks(rank: int, ranks: int, folder: str) -> None:
    weight, optimizer = _optimizer()
    optimizer.plan(verbose=False)
    weight.grad = torch.ones_like(weight)
    held = _Held(optimizer)
    with pytest.raises(RuntimeError, match="^save: another thread is in step"):
        optimizer.save(folder)
    assert not Path(folder).exists()
    dist.barrier()
    held.release()


def test_on_several_ranks_a_save_of_another_thread_raises(tmp_path: Path) -> None:
    run_ranks(2, _many_ranks, str(tmp_path / "checkpoint"))


def _in_child(work: Callable[[], object]) -> int:
    """Exit code of a forked process that does this; it is killed if it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize("threads", [1, 4])
def test_a_forked_child_is_told_to_make_its_own_optimizer(threads: int) -> None:
    weight, optimizer = _optimizer(64, threads=threads)
    weight.grad = torch.ones_like(weight)
    optimizer.step()

    def work() -> None:
        for call in (optimizer.step, optimizer.state_dict, optimizer.grad_norm, optimizer.plan, optimizer.stats):
            with pytest.raises(RuntimeError, match=f"belongs to process {os.getppid()}"):
                call()

    assert _in_child(work) == 0
    optimizer.step()
    assert optimizer.stats()["step"] == 2


def test_an_optimizer_that_was_not_used_may_be_used_in_a_child() -> None:
    weight, optimizer = _optimizer(threads=2)

    def work() -> None:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert optimizer.stats()["step"] == 1

    assert _in_child(work) == 0
