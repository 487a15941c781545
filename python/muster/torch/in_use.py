"""One call at a time: an optimizer is used by one thread of one process."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from .. import _muster


class InUse:
    """Remembers which call of which thread is in progress.

    A call of another thread raises RuntimeError. With one rank ``save`` waits instead, and other calls wait for it, so
    that a checkpoint follows a complete step. With several ranks ``save`` raises too: each process could place it after
    a different step.
    """

    def __init__(self, ranks: int) -> None:
        self._save_waits = ranks == 1
        self._changed = threading.Condition()
        self._thread: int | None = None
        self._depth = 0
        self._call = ""
        self._saves = 0  # calls of save that wait
        self.process: int | None = None  # the process that made the engine

    def call(self, name: str) -> _Call:
        """A context in which the call ``name`` is in progress. One thread may nest them."""
        return _Call(self, name)

    def enter(self, name: str) -> None:
        if self.process not in (None, os.getpid()):
            # Before the lock, which the parent may have held at the fork. The text is that of the engine's own check.
            raise _muster.Error(
                f"this optimizer belongs to process {self.process}, and process {os.getpid()} is a fork of it: make "
                "another here"
            )
        me = threading.get_ident()
        with self._changed:
            if self._thread != me:
                self._wait(name)
                self._thread, self._call = me, name
            self._depth += 1

    def _wait(self, name: str) -> None:
        if self._thread is None and not (self._saves and name != "save"):
            return
        if not self._save_waits or "save" not in (name, "save" if self._thread is None else self._call):
            raise RuntimeError(
                f"{name}: another thread is in {self._call} of this optimizer; call it from one thread at a time"
            )
        if name == "save":
            self._saves += 1
            self._changed.wait_for(lambda: self._thread is None)
            self._saves -= 1
        else:  # waiting calls of save come first
            self._changed.wait_for(lambda: self._thread is None and not self._saves)

    def leave(self) -> None:
        with self._changed:
            self._depth -= 1
            if self._depth == 0:
                self._thread = None
                self._changed.notify_all()


class _Call:
    __slots__ = ("_name", "_use")

    def __init__(self, use: InUse, name: str) -> None:
        self._use, self._name = use, name

    def __enter__(self) -> None:
        self._use.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._use.leave()
