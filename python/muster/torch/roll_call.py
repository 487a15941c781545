"""Roll call of a process group: finds the ranks that are missing when an operation fails.

A rank knows only which messages did not come, and their sender may itself wait for the missing rank. So every rank that
waits for long writes its operation and the rank that it waits for to the group's store. A rank whose operation failed
follows these reports to the ranks without one.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

PERIOD = 0.5  # seconds: a wait that lasts longer is reported
GRACE = 2.0  # seconds in which other ranks report, after an operation failed; more than two periods


@dataclass
class Report:
    """The report of a rank in the store: its operation, and the ranks that it waits for."""

    operation: str
    late: Sequence[int] = ()  # ranks whose messages have not come
    gone: Sequence[int] = ()  # ranks that closed their connections
    failed: bool = False  # the operation has failed; False: this rank still waits


class Waiting:
    """Marks a wait in progress: ``with roll_call.waiting(operation) as waiting``."""

    def __init__(self, roll_call: RollCall, operation: str) -> None:
        self._roll_call = roll_call
        self.operation = operation
        self.begin = time.monotonic()
        self.peer: int | None = None  # the rank that this one waits for
        self.reported = False

    def __enter__(self) -> Waiting:
        self._roll_call.waits[id(self)] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._roll_call.waits[id(self)]
        if self.reported:
            self._roll_call.wake.set()  # to withdraw the report


class Findings(NamedTuple):
    """The ranks that an operation lacked."""

    late: set[int]
    gone: set[int]
    elsewhere: dict[int, str]  # ranks that wait in another operation

    def text(self) -> str:
        parts = [f"{_names(self.gone)} died or left"] if self.gone else []
        parts += [f"{_names(self.late)} had not arrived"] if self.late else []
        parts = parts or [f"rank {rank} is at {operation}" for rank, operation in sorted(self.elsewhere.items())]
        return ", ".join(parts) or "all ranks arrived, but not their messages"


class RollCall:
    """The reports of the ranks of one process group."""

    made: ClassVar[WeakKeyDictionary[dist.ProcessGroup, RollCall]] = WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.store = _store(group)
        self.waits: dict[int, Waiting] = {}
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._failed: Report | None = None
        self._written = ""
        if self.store is not None:
            # A thread reports waits: a short wait instead would make Gloo close all connections when it times out.
            watch = threading.Thread(target=_watch, args=(weakref.ref(self), self.wake), name="muster", daemon=True)
            watch.start()

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> RollCall:
        if group not in cls.made:
            cls.made[group] = cls(group)
        return cls.made[group]

    def waiting(self, operation: str) -> Waiting:
        return Waiting(self, operation)

    def call(self, mine: Report) -> Findings:
        """Finds the ranks that are missing. Takes little more than the grace period, also if the store hangs."""
        mine.failed = True
        found = Findings(set(mine.late), set(mine.gone), {})
        answers: list[Findings] = []
        if self.store is not None:
            self._failed = mine
            ask = threading.Thread(target=self._ask, args=(mine, answers), name="muster", daemon=True)
            ask.start()
            ask.join(GRACE + PERIOD)  # the missing rank may be the store's host
        return (answers or [found])[-1]

    def _ask(self, mine: Report, answers: list[Findings]) -> None:
        end = time.monotonic() + GRACE
        try:
            self.write()
            while time.monotonic() < end:
                answers.append(self._follow(mine))
                if not answers[-1].late and not answers[-1].gone:
                    return
                time.sleep(GRACE / 20)
        except RuntimeError:  # the store is gone: use the last answer, else this rank's own messages
            return

    def _follow(self, mine: Report) -> Findings:
        """Follows the reports, beginning with this rank's own."""
        found = Findings(set(), set(), {})
        reports, seen = [mine], {(self.rank, False), (self.rank, True)}
        while reports:
            report = reports.pop()
            for rank, closed in [(rank, False) for rank in report.late] + [(rank, True) for rank in report.gone]:
                if (rank, closed) in seen:
                    continue
                seen.add((rank, closed))
                theirs = self._read(rank)
                # A rank whose connections are closed does not wait any more, so its earlier report does not count.
                if theirs is None or (closed and not theirs.failed):
                    (found.gone if closed else found.late).add(rank)
                    continue
                if theirs.operation != mine.operation:
                    found.elsewhere[rank] = theirs.operation
                reports.append(theirs)
        return found

    def _read(self, rank: int) -> Report | None:
        assert self.store is not None
        if not self.store.check([str(rank)]):
            return None
        text = self.store.get(str(rank))
        return Report(**json.loads(text)) if text else None

    def write(self) -> None:
        """Writes this rank's report, if it has changed."""
        assert self.store is not None
        with self._lock:
            text = self._report()
            if text != self._written:
                self.store.set(str(self.rank), text)
                self._written = text

    def _report(self) -> str:
        if self._failed is not None:
            return json.dumps(asdict(self._failed))
        since = time.monotonic() - PERIOD
        for waiting in list(self.waits.values()):  # the oldest first
            if waiting.begin <= since:
                waiting.reported = True
                late = () if waiting.peer is None else (waiting.peer,)
                return json.dumps(asdict(Report(waiting.operation, late)))
        return ""


def _watch(roll_call: weakref.ref[RollCall], wake: threading.Event) -> None:
    while True:
        wake.wait(PERIOD)
        wake.clear()
        alive = roll_call()
        if alive is None:
            return
        try:
            alive.write()
        except RuntimeError:  # the store is gone
            return
        del alive


def _store(group: dist.ProcessGroup) -> Store | None:
    try:
        return PrefixStore("muster", dist.distributed_c10d._get_process_group_store(group))
    except (AttributeError, KeyError, TypeError):
        return None


def _names(ranks: set[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
