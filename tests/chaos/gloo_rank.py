"""What chaos_rank does, in PyTorch: one rank of a training over Gloo, which chaos.py forks."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import muster.torch
from muster.torch.communicator import Messages

MATRICES = {"qkv": (48, 20), "up": (33, 26), "down": (26, 33), "router": (7, 20)}
OTHERS = {"embed": (37, 11), "gain": (23,)}
SHAPES = MATRICES | OTHERS


class Faults:
    """RANK:PHASE:NUMBER:ACTION:MICROSECONDS, as chaos_rank takes them. Counts the operations of this process."""

    def __init__(self, faults: list[str], rank: int, say: Callable[[str], None]) -> None:
        self.phase = "start"
        self._say = say
        self._pending = []
        for fault in faults:
            of, phase, number, action, microseconds = fault.split(":")
            if int(of) == rank:
                self._pending.append([phase, int(number), action, int(microseconds) / 1e6])

    def operation(self) -> None:
        for pending in list(self._pending):
            phase, number, action, seconds = pending
            if phase != self.phase:
                continue
            pending[1] = number - 1
            if number == 0:
                self._pending.remove(pending)
                self._strike(action, seconds)

    def _strike(self, action: str, seconds: float) -> None:
        self._say("struck")
        if action == "delay":
            time.sleep(seconds)
        elif seconds > 0:
            threading.Timer(seconds, self._signal, [action]).start()
        else:
            self._signal(action)

    def _signal(self, action: str) -> None:
        if action == "stop":
            self._say(f"stopping {os.getpid()}")
        os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


class Trainee:
    """The model, its optimizer and its gradients, which depend on parameter, element and step alone."""

    def __init__(self, ranks: int, cut: int, overlap: bool, timeout: float) -> None:
        self.ranks = ranks
        self.mesh = DeviceMesh("cpu", list(range(ranks))) if ranks > 1 else None
        self.parameters: dict[str, tuple[nn.Parameter, int | None]] = {}  # and the dimension that is cut
        groups = []
        for algorithm, shapes in (("normuon", MATRICES), ("adamw", OTHERS)):
            pairs = []
            for number, (name, shape) in enumerate(shapes.items()):
                kind = (cut + number) % 3
                dim = None if self.mesh is None or kind == 0 or (kind == 2 and len(shape) < 2) else kind - 1
                whole = self._whole(name, shape, 0)
                parameter = nn.Parameter(whole if dim is None else self._cut(whole, dim))
                self.parameters[name] = (parameter, dim)
                pairs.append((name, parameter))
            groups.append({"params": pairs, "algorithm": algorithm, "every": 1 if algorithm == "normuon" else 2})
        self.optimizer = muster.torch.NorMuon(
            groups, lr=0.02, waves=3, seed=7, threads=1, overlap=overlap, timeout=timedelta(seconds=timeout)
        )
        self.steps = 0

    @staticmethod
    def _whole(name: str, shape: tuple[int, ...], salt: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * salt + sum(name.encode()))
        return torch.randn(shape, generator=generator)

    def _cut(self, whole: torch.Tensor, dim: int) -> DTensor:
        return DTensor.from_local(
            self._mine(whole, dim), self.mesh, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def _mine(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        parts = list(torch.chunk(whole, self.ranks, dim))
        empty = whole.narrow(dim, 0, 0)
        parts += [empty] * (self.ranks - len(parts))
        return parts[dist.get_rank()].contiguous().clone()

    def step(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad()
        loss = torch.zeros(())
        for name, (parameter, dim) in self.parameters.items():
            whole = self._whole(name, SHAPES[name], self.steps)
            if dim is None:
                loss = loss + (parameter * whole).sum()
            else:
                loss = loss + (parameter.to_local() * self._mine(whole, dim)).sum()
        loss.backward()
        self.optimizer.step()

    def load(self, directory: Path) -> None:
        self.optimizer.load(directory)
        (steps,) = {int(state["steps"]) for state in self.optimizer.state.values()}
        self.steps = steps

    def hash(self) -> str:
        """On one rank."""
        total = hashlib.sha256()
        for name, (parameter, _) in self.parameters.items():
            total.update(name.encode() + parameter.detach().numpy().tobytes())
            for key, value in sorted(self.optimizer.state[parameter].items()):
                total.update(key.encode() + torch.as_tensor(value).numpy().tobytes())
        return total.hexdigest()[:16]


def alone(mode: str, values: dict[str, str], pipe: Connection) -> None:
    """On one rank, in a process of its own: ``reference`` or ``check``, as chaos_rank has them."""
    torch.set_num_threads(1)
    try:
        trainee = Trainee(1, 0, False, 60)
        lines = []
        if mode == "check":
            trainee.load(Path(values["dir"]))
            lines.append(f"step {trainee.steps} {trainee.hash()}")
        else:
            for step in range(1, int(values["steps"]) + 1):
                trainee.step()
                lines.append(f"step {step} {trainee.hash()}")
        pipe.send("\n".join(lines))
    except Exception as error:
        pipe.send(f"wrong {error}")


def train(values: dict[str, str], faults: list[str], rank: int, store: str, pipe: Connection) -> None:
    """One of several ranks. Sends lines of text, as chaos_rank prints them."""
    torch.set_num_threads(1)
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            pipe.send(f"rank {rank}: {text}")

    ranks, directory = int(values["ranks"]), Path(values["dir"])
    found = Faults(faults, rank, say)
    post = Messages.post

    def faulty_post(self: Messages, *args, **options):
        found.operation()
        return post(self, *args, **options)

    Messages.post = faulty_post  # type: ignore[method-assign]
    say(f"runs in {os.getpid()}")
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
    try:
        trainee = Trainee(ranks, int(values["cut"]), values["overlap"] == "1", int(values["timeout"]) / 1000)
        if (directory / "muster.index.json").exists():
            found.phase = "load"
            trainee.load(directory)
        while trainee.steps < int(values["steps"]):
            found.phase = "step"
            trainee.step()
            if trainee.steps % int(values["every"]) == 0:
                found.phase = "save"
                trainee.optimizer.save(directory)
                if rank == 0:
                    say(f"saved {trainee.steps}")
        say("done")
    except muster.CommError as error:
        say(f"lost {error}")
    except Exception as error:
        say(f"wrong {type(error).__name__}: {error}")
    # A process that leaves closes its connections, in which others may be reading their last message.
    default = dist.distributed_c10d._get_default_store()
    default.set(f"ended {rank}", "")
    try:
        default.wait([f"ended {other}" for other in range(ranks)], timedelta(milliseconds=int(values["timeout"])))
    except RuntimeError:
        pass
    os._exit(0)  # without destroy_process_group, which would wait for the dead
