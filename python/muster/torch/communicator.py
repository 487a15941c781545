"""A torch process group as a communicator of the engine."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .. import _muster

Message = tuple[int, int, int]  # peer, address, bytes


def _view(address: int, size: int) -> torch.Tensor:
    """The bytes at an address, without a copy."""
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


class _Messages:
    """Starts messages on a process group; the engine calls ``post``, alike on every rank."""

    made: ClassVar[WeakKeyDictionary[dist.ProcessGroup, int]] = WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta) -> None:
        self.group = group
        self.timeout = timeout
        self.posted = 0
        # Which one this is of those on the same group: their messages are kept apart.
        self.number = self.made.get(group, 0)
        self.made[group] = self.number + 1

    def post(self, name: str, sends: list[Message], receives: list[Message]) -> Callable[[], None]:
        self.posted += 1
        started = []
        for peer, address, size in receives:
            tensor = _view(address, size)
            started.append((dist.irecv(tensor, group=self.group, group_src=peer, tag=self._tag(name, size)), tensor))
        for peer, address, size in sends:
            tensor = _view(address, size)
            started.append((dist.isend(tensor, group=self.group, group_dst=peer, tag=self._tag(name, size)), tensor))

        def wait() -> None:
            for work, _ in started:
                work.wait(self.timeout)

        return wait

    def _tag(self, name: str, size: int) -> int:
        # Ranks that disagree then wait for messages that never come, until the timeout. Gloo would end the process of a
        # rank that receives more bytes than it expects.
        return zlib.crc32(f"{self.number} {self.posted} {size} {name}".encode()) & 0x7FFFFFFF


def make_communicator(group: dist.ProcessGroup | None, timeout: timedelta) -> _muster.Communicator:
    """The ranks of ``group``, which moves host memory (Gloo); None: this process is alone."""
    if group is None or dist.get_world_size(group) == 1:
        return _muster.single_communicator()
    messages = _Messages(group, timeout)
    return _muster.PythonCommunicator(
        dist.get_rank(group), dist.get_world_size(group), timeout.total_seconds(), messages.post
    )
