"""Communication between the ranks of an optimizer outside the engine: small Python objects, and errors."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist

from .. import _muster
from .communicator import Messages, moves_host_memory
from .roll_call import GRACE, Report, RollCall

TIMEOUT = timedelta(minutes=10)


def _is_time(timeout: object) -> bool:
    return isinstance(timeout, timedelta) and timeout >= timedelta(milliseconds=1)


class Ranks:
    """The ranks of a process group, or one rank alone, and how long each waits for the others."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        self.group = group
        self.timeout = timeout if _is_time(timeout) else TIMEOUT  # check_timeout refuses a bad one on all ranks
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.broken: str | None = None  # why communication has failed; None: it works
        self._messages: Messages | None = None
        if group is not None and self.size > 1 and moves_host_memory(group):
            self._messages = Messages(group, self.timeout)
            self._communicator = self._messages.communicator()

    def gather(self, what: str, mine: Any, later: timedelta = timedelta(0)) -> list[Any]:
        """Returns ``mine`` of every rank. All ranks together; ranks may arrive up to ``later`` after others.

        ``what`` names the call in errors. Raises CommError if a rank does not arrive in time.
        """
        if self.size == 1:
            return [mine]
        if self.broken is not None:
            raise _muster.CommError(f"{what}: earlier, {self.broken}")
        begin = time.monotonic()
        try:
            everybody = self._gather((what, mine), later)
        except RuntimeError as error:
            self.broken = f"{what}: {self._why(what, time.monotonic() - begin, error)}"
            raise _muster.CommError(self.broken) from None
        for rank, (theirs, _) in enumerate(everybody):
            if theirs != everybody[0][0]:
                raise _muster.CommError(f"ranks disagree: rank 0 is at {everybody[0][0]} and rank {rank} at {theirs}")
        return [given for _, given in everybody]

    def _gather(self, mine: Any, later: timedelta) -> list[Any]:
        if self._messages is None:  # here the process group's own timeout counts
            assert self.group is not None
            everybody: list[Any] = [None] * self.size
            with RollCall.of(self.group).waiting(mine[0]):
                dist.all_gather_object(everybody, mine, group=self.group)
            return everybody
        # Not by torch's collectives: after a timeout they stay under way, so the process could not end before the
        # group's own timeout, and another one could be mistaken for it.
        # A rank that comes later because another operation failed there has spent the time of a roll call.
        grace = timedelta(seconds=2 * GRACE) if later else timedelta(0)
        self._messages.timeout, self._messages.purpose = self.timeout + later + grace, mine[0]
        data = pickle.dumps(mine)
        try:
            digests = self._communicator.gather(blake2b(data).digest(), "ranks")
            if len(set(digests)) == 1:  # the usual case: equal objects need not travel
                return [mine] * self.size
            return [pickle.loads(theirs) for theirs in self._communicator.gather(data, "ranks")]
        finally:
            self._messages.timeout = self.timeout

    def _why(self, what: str, seconds: float, error: RuntimeError) -> str:
        """Says which ranks did not arrive."""
        if self._messages is not None and self._messages.failed is not None:
            return self._messages.failed
        reason = str(error).partition("\n")[0]
        if self._messages is not None or self.group is None:
            return reason
        others = [rank for rank in range(self.size) if rank != self.rank]
        found = RollCall.of(self.group).call(Report(what, late=others))
        return f"{found.text()} after {seconds:.1f} s ({reason})"

    def largest(self, what: str, values: torch.Tensor) -> None:
        """Replaces float32 values by the largest of all ranks, in one reduction. All ranks together.

        Values on a CUDA device stay there if the process group can reduce them.
        """
        if self.size == 1:
            return
        if self.broken is not None:
            raise _muster.CommError(f"{what}: earlier, {self.broken}")
        begin = time.monotonic()
        try:
            if values.is_cuda and (self._messages is None or "cuda:" in dist.get_backend_config(self.group)):
                dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
                return
            assert self._messages is not None
            self._messages.purpose = what
            host = values.cpu()
            self._communicator.all_reduce_max(host.data_ptr(), host.numel(), what)
            values.copy_(host)
        except RuntimeError as error:
            self.broken = f"{what}: {self._why(what, time.monotonic() - begin, error)}"
            raise _muster.CommError(self.broken) from None

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A context: an exception that one rank raises in it is raised on all. All ranks together."""
        error: Exception | None = None
        try:
            yield
        except KeyError as caught:
            error = ValueError(f"{caught} is missing")
        except Exception as caught:
            error = caught
        self.raise_any(what, error)

    def raise_any(self, what: str, mine: Exception | None) -> None:
        """Raises the error of any rank on all of them; a rank with its own error raises that. All ranks together."""
        everybody: list[str | None] = []
        try:
            everybody = self.gather(what, None if mine is None else str(mine))
        except _muster.CommError:
            if mine is None:
                raise
        if mine is not None:
            raise mine from None
        raise_first(everybody, None)


def raise_first(everybody: list[str | None], mine: str | None) -> None:
    """Raises the first of the errors of all ranks; ``mine`` is this rank's."""
    for rank, theirs in enumerate(everybody):
        if theirs is not None:
            raise ValueError(theirs if theirs == mine else f"rank {rank}: {theirs}") from None


def check_timeout(timeout: object) -> None:
    if not _is_time(timeout):
        raise ValueError(f"timeout {timeout!r}: expected a timedelta of a millisecond or more")
