"""Communicators for the engine: NCCL, with an id sent through a torch process group, or the process group itself."""

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
from .errors import comm_error
from .roll_call import Report, RollCall

if TYPE_CHECKING:
    from .ranks import Ranks

Message = tuple[int, int, int]  # peer, address, bytes


def _view(address: int, size: int) -> torch.Tensor:
    """The bytes at an address, without a copy."""
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


class _WaitingThread:
    """A thread that waits for operations, one after the other.

    Gloo reports completion only to a waiter, and its waits do not end when a signal comes.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        threading.Thread(target=_wait_for_all, args=(self._queue,), name="muster", daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def add(self, wait: Callable[[], None], give_up: Callable[[], None]) -> _Awaited:
        awaited = _Awaited(wait, give_up)
        self._queue.put(awaited)
        return awaited


class _Awaited:
    """An operation that a thread waits for. Calling the object waits until the thread has.

    Unlike a wait in Gloo, this wait ends when a signal's handler raises, as Ctrl-C does. Then it calls ``give_up``.
    """

    def __init__(self, wait: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.wait, self._give_up = wait, give_up
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
        try:
            self._over.wait()  # it ends: the operation has a timeout
        except BaseException:
            self._give_up()
            raise
        if self._error is not None:
            raise self._error


def _wait_for_all(waiting: queue.SimpleQueue[_Awaited | None]) -> None:
    while (awaited := waiting.get()) is not None:
        awaited.run()
        del awaited  # frees the memory of its messages


class Messages:
    """Starts messages on a process group. The engine calls ``post``, in the same order on every rank."""

    made: ClassVar[WeakKeyDictionary[dist.ProcessGroup, int]] = WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, background: bool = False) -> None:
        self.group = group
        self._background = background
        self._thread: _WaitingThread | None = None
        self._roll_call = RollCall.of(group)
        self.timeout = timeout
        self.purpose: str | None = None  # reported to other ranks in place of the operation's name
        self.failed: str | None = None  # why the group has failed; None: it works
        self._code = _muster.ErrorCode.other
        self.posted = 0
        # Numbers the objects on one group: tags keep their messages apart.
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

        def give_up() -> None:
            self._close(started)

        if self._background:
            return self._waiting_thread().add(wait, give_up)

        def wait_here() -> None:
            # Signals are handled in the main thread, which must not wait in Gloo for that.
            if threading.current_thread() is threading.main_thread():
                self._waiting_thread().add(wait, give_up)()
            else:
                wait()

        return wait_here

    def _waiting_thread(self) -> _WaitingThread:
        if self._thread is None:
            self._thread = _WaitingThread()
        return self._thread

    def _close(self, started: list[tuple[int, Any, torch.Tensor]]) -> None:
        """Ends operations whose wait was interrupted: Gloo must not write to their memory later."""
        if self.failed is None:
            self.failed = "interrupted"
        for _, work, _ in started:
            _has_ended(work)  # a wait that times out closes all connections of the group

    def _wait_for(self, name: str, started: list[tuple[int, Any, torch.Tensor]]) -> None:
        if self.failed is not None:
            raise comm_error(self.failed, self._code)
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
            found = self._roll_call.call(report)
            if found.late:
                self._code = _muster.ErrorCode.rank_missing
            self.failed = f"{found.text()} after {seconds:.1f} s ({reason})"  # last: other threads look at it
        return comm_error(self.failed, self._code)

    def communicator(self) -> _muster.Communicator:
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        return _muster.PythonCommunicator(rank, ranks, self.timeout.total_seconds(), self.post)

    def _tag(self, name: str, size: int) -> int:
        # With the size in the tag, ranks that disagree time out. Without it Gloo would end the process of a rank that
        # receives more bytes than it expects.
        return zlib.crc32(f"{self.number} {self.posted} {size} {name}".encode()) & 0x7FFFFFFF


def _has_ended(work: dist.Work) -> bool:
    """True if a message had arrived before its connection was closed."""
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
    """A communicator over a group that moves host memory; with ``background`` a thread waits for its messages."""
    if not moves_host_memory(group):
        raise ValueError(
            f"process group {dist.get_backend_config(group)}: it does not move memory of the CPU; "
            'use init_process_group("cpu:gloo,cuda:nccl")'
        )
    return Messages(group, timeout, background).communicator()


class _Nccl:
    """A communicator of NCCL that optimizers share; it lives as long as one of them."""

    #: By ranks, device and timeout.
    made: ClassVar[WeakValueDictionary[Any, _Nccl]] = WeakValueDictionary()

    def __init__(self, identity: bytes, communicator: _muster.Communicator) -> None:
        self.identity = identity
        self.communicator = communicator

    @classmethod
    def get(cls, ranks: Ranks, device: torch.device) -> _Nccl:
        """Returns the existing one, if all ranks still have it, or a new one.

        All ranks together; raises CommError on all of them.
        """
        assert ranks.group is not None
        key = (tuple(dist.get_process_group_ranks(ranks.group)), device.index, ranks.timeout)
        known = cls.made.get(key)
        # Ranks collect garbage at different times: only some may still have it.
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
    """The communicator of one optimizer. All ranks make theirs together.

    ``backend`` is "auto", "nccl" or "process_group". The CPU always uses the process group. On CUDA "auto" uses NCCL,
    or, with a warning, the process group if NCCL cannot be used.
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
