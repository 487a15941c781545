"""Communicators of the engine: NCCL, whose id a torch process group carries, or the process group itself."""

from __future__ import annotations

import ctypes
import queue
import re
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist

from .. import _muster
from .roll_call import Report, RollCall

if TYPE_CHECKING:
    from .ranks import Ranks

Message = tuple[int, int, int]  # peer, address, bytes


def _view(address: int, size: int) -> torch.Tensor:
    """The bytes at an address, without a copy."""
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


class _Waiting:
    """Waits in a thread, one after the other: Gloo tells nobody else that a message has arrived."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        threading.Thread(target=_wait_for_all, args=(self._queue,), name="muster", daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def add(self, wait: Callable[[], None]) -> _Awaited:
        awaited = _Awaited(wait)
        self._queue.put(awaited)
        return awaited


class _Awaited:
    """An operation that a thread waits for; a call waits for that."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self.wait()
        except BaseException as error:
            self._error = error
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def __call__(self) -> None:
        self._over.wait()  # which ends: what it waits for has a timeout
        if self._error is not None:
            raise self._error


def _wait_for_all(waiting: queue.SimpleQueue[_Awaited | None]) -> None:
    while (awaited := waiting.get()) is not None:
        awaited.run()
        del awaited  # the memory of its messages


class Messages:
    """Starts messages on a process group; the engine calls ``post``, alike on every rank."""

    made: ClassVar[WeakKeyDictionary[dist.ProcessGroup, int]] = WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, background: bool = False) -> None:
        self.group = group
        self._waiting = _Waiting() if background else None
        self._roll_call = RollCall.of(group)
        self.timeout = timeout
        self.purpose: str | None = None  # what other ranks are told that this one is at; None: the operation's name
        self.failed: str | None = None  # why no message can come any more
        self.posted = 0
        # Which one this is of those on the same group: their messages are kept apart.
        self.number = self.made.get(group, 0)
        self.made[group] = self.number + 1

    def post(self, name: str, sends: list[Message], receives: list[Message]) -> Callable[[], None]:
        self.posted += 1
        started: list[tuple[int, Any, torch.Tensor]] = []
        begin, peer = time.monotonic(), 0
        try:
            for peer, address, size in receives:
                tensor = _view(address, size)
                work = dist.irecv(tensor, group=self.group, group_src=peer, tag=self._tag(name, size))
                started.append((peer, work, tensor))
            for peer, address, size in sends:
                tensor = _view(address, size)
                work = dist.isend(tensor, group=self.group, group_dst=peer, tag=self._tag(name, size))
                started.append((peer, work, tensor))
        except RuntimeError as error:
            raise self._failure(Report(self.purpose or name, gone=[peer]), begin, error) from None

        def wait() -> None:
            self._wait_for(name, started)

        return wait if self._waiting is None else self._waiting.add(wait)

    def _wait_for(self, name: str, started: list[tuple[int, Any, torch.Tensor]]) -> None:
        if self.failed is not None:
            raise _muster.CommError(self.failed)
        operation, begin = self.purpose or name, time.monotonic()
        deadline = begin + self.timeout.total_seconds()
        with self._roll_call.waiting(operation) as waiting:
            for number, (peer, work, _) in enumerate(started):
                waiting.peer = peer
                try:
                    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
                except RuntimeError as error:
                    report = Report(operation, gone=[peer])
                    if time.monotonic() > deadline - 0.01:  # else the peer closed the connection
                        rest = {other for other, later, _ in started[number + 1 :] if not _has_ended(later)}
                        report = Report(operation, late=sorted({peer} | rest))
                    raise self._failure(report, begin, error) from None

    def _failure(self, report: Report, begin: float, error: RuntimeError) -> _muster.CommError:
        seconds = time.monotonic() - begin
        if self.failed is None:
            reason = re.sub(r"^\[[^]]*\] ", "", str(error).partition("\n")[0]).split(". ")[0]  # without file and advice
            self.failed = f"{self._roll_call.call(report)} after {seconds:.1f} s ({reason})"
        return _muster.CommError(self.failed)

    def communicator(self) -> _muster.Communicator:
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        return _muster.PythonCommunicator(rank, ranks, self.timeout.total_seconds(), self.post)

    def _tag(self, name: str, size: int) -> int:
        # Ranks that disagree then wait for messages that never come, until the timeout. Gloo would end the process of a
        # rank that receives more bytes than it expects.
        return zlib.crc32(f"{self.number} {self.posted} {size} {name}".encode()) & 0x7FFFFFFF


def _has_ended(work: dist.Work) -> bool:
    """Whether a message was there before its connection was closed."""
    try:
        work.wait(timedelta(milliseconds=1))
    except RuntimeError:
        return False
    return True


def moves_host_memory(group: dist.ProcessGroup) -> bool:
    return "cpu:" in dist.get_backend_config(group)


def process_group_communicator(
    group: dist.ProcessGroup, timeout: timedelta, background: bool = False
) -> _muster.Communicator:
    """The ranks of a group that moves host memory; ``background``: for who asks whether something has ended."""
    if not moves_host_memory(group):
        raise ValueError(
            f"process group {dist.get_backend_config(group)}: it does not move memory of the CPU; "
            'use init_process_group("cpu:gloo,cuda:nccl")'
        )
    return Messages(group, timeout, background).communicator()


class _Nccl:
    """A communicator of NCCL, alive as long as an optimizer has it."""

    #: By ranks, device and timeout: two optimizers of the same ranks share one.
    made: ClassVar[WeakValueDictionary[Any, _Nccl]] = WeakValueDictionary()

    def __init__(self, identity: bytes, communicator: _muster.Communicator) -> None:
        self.identity = identity
        self.communicator = communicator

    @classmethod
    def get(cls, ranks: Ranks, device: torch.device) -> _Nccl:
        """One that is there, on all ranks, or a new one. All ranks together; raises CommError on all of them."""
        assert ranks.group is not None
        key = (tuple(dist.get_process_group_ranks(ranks.group)), device.index, ranks.timeout)
        known = cls.made.get(key)
        # Garbage is not collected everywhere at once: some ranks may have it still.
        everybody = ranks.gather("NCCL", None if known is None else known.identity)
        shared = known is not None and all(identity == known.identity for identity in everybody)
        if known is not None and shared and cls._works(ranks, known):
            return known
        return cls._make(ranks, device, key)

    @staticmethod
    def _works(ranks: Ranks, known: _Nccl) -> bool:
        error = None
        try:
            known.communicator.barrier("share a communicator")
        except _muster.CommError as caught:
            error = str(caught)
        return not any(ranks.gather("NCCL, shared", error, ranks.timeout))

    @classmethod
    def _make(cls, ranks: Ranks, device: torch.device, key: Any) -> _Nccl:
        identity = b""
        made: _Nccl | None = None
        error: str | None = None
        try:
            if not _muster.nccl_available():
                raise _muster.CommError("libnccl.so.2 is not there, or Muster was built without NCCL")
            if ranks.rank == 0:
                identity = _muster.make_nccl_id()
        except _muster.CommError as caught:
            error = str(caught)
        offers = ranks.gather("NCCL's id", (identity, error))
        _raise_first([theirs for _, theirs in offers])
        identity = offers[0][0]
        try:
            with torch.cuda.device(device):
                communicator = _muster.make_nccl_communicator(
                    identity, ranks.rank, ranks.size, ranks.timeout.total_seconds(), device.index
                )
            made = cls(identity, communicator)
        except _muster.CommError as caught:
            error = str(caught)
        _raise_first(ranks.gather("NCCL's communicator", error, ranks.timeout))
        assert made is not None
        cls.made[key] = made
        return made


def _raise_first(errors: list[str | None]) -> None:
    for rank, error in enumerate(errors):
        if error is not None:
            raise _muster.CommError(f"NCCL: rank {rank}: {error}")


class Link:
    """How an optimizer's ranks talk, as long as it lives. All ranks make theirs together.

    ``backend`` is "auto", "nccl" or "process_group": for the CPU always the last, on CUDA "auto" is NCCL, and the
    process group, with a warning, where NCCL cannot be used.
    """

    def __init__(
        self,
        ranks: Ranks,
        device: torch.device,
        backend: str = "auto",
        background: bool = False,
    ) -> None:
        self._nccl: _Nccl | None = None
        self.name = "none"
        if ranks.group is None or ranks.size == 1:
            self.communicator = _muster.single_communicator()
            return
        if device.type == "cuda" and backend != "process_group":
            try:
                self._nccl = _Nccl.get(ranks, device)
            except _muster.CommError as error:
                if backend == "nccl" or ranks.broken is not None:
                    raise
                warnings.warn(f"muster: messages go through the process group and host memory: {error}", stacklevel=5)
        self.name = "process_group" if self._nccl is None else "nccl"
        if self._nccl is None:
            self.communicator = process_group_communicator(ranks.group, ranks.timeout, background)
        else:
            self.communicator = self._nccl.communicator
