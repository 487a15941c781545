"""What all ranks of an optimizer must know before there is an engine, or beside it."""

from __future__ import annotations

import ctypes
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _muster


def moves_host_memory(group: dist.ProcessGroup) -> bool:
    return "cpu:" in dist.get_backend_config(group)


class Ranks:
    """The ranks of a process group, or one alone, and how long each of them waits for the others."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        if not isinstance(timeout, timedelta) or timeout < timedelta(milliseconds=1):
            raise ValueError(f"timeout {timeout!r}: expected a timedelta of a millisecond or more")
        self.group, self.timeout = group, timeout
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.broken: str | None = None  # why they cannot talk any more

    def gather(self, what: str, mine: Any, later: timedelta = timedelta(0)) -> list[Any]:
        """What every rank gives, to the same end. All ranks together, some later than others by as much as that.

        Raises CommError if one does not come in time.
        """
        if self.size == 1:
            return [mine]
        if self.broken is not None:
            raise _muster.CommError(self.broken)
        begin, patience = time.monotonic(), self.timeout + later
        try:
            everybody = [pickle.loads(given) for given in self._gather_bytes(pickle.dumps((what, mine)), patience)]
        except RuntimeError as error:  # of a rank that is gone or late
            waited, reason = time.monotonic() - begin, str(error).splitlines()[0]
            self.broken = f"{what}: not all ranks came within {waited:.1f} s: {reason}"
            raise _muster.CommError(self.broken) from None
        for rank, (theirs, _) in enumerate(everybody):
            if theirs != everybody[0][0]:
                raise _muster.CommError(f"ranks disagree: rank 0 is at {everybody[0][0]} and rank {rank} at {theirs}")
        return [given for _, given in everybody]

    def _gather_bytes(self, mine: bytes, patience: timedelta) -> list[bytes]:
        assert self.group is not None
        device = torch.device("cpu" if moves_host_memory(self.group) else "cuda")
        sizes = [int(size) for size in self._gather_tensors(torch.tensor([len(mine)], device=device), patience)]
        padded = torch.frombuffer(bytearray(mine.ljust(max(sizes), b"\0")), dtype=torch.uint8)
        everybody = [theirs.cpu() for theirs in self._gather_tensors(padded.to(device), patience)]
        return [ctypes.string_at(theirs.data_ptr(), size) for theirs, size in zip(everybody, sizes)]

    def _gather_tensors(self, mine: torch.Tensor, patience: timedelta) -> list[torch.Tensor]:
        everybody = [torch.empty_like(mine) for _ in range(self.size)]
        work = dist.all_gather(everybody, mine, group=self.group, async_op=True)
        assert work is not None  # only of ranks outside the group
        work.wait(patience)
        return everybody

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """What is raised in it on one rank is raised on all. All ranks together."""
        error: Exception | None = None
        try:
            yield
        except KeyError as caught:
            error = ValueError(f"{caught} is missing")
        except Exception as caught:
            error = caught
        try:
            everybody = self.gather(what, None if error is None else str(error))
        except _muster.CommError:
            if error is None:
                raise
        if error is not None:
            raise error
        raise_first(everybody, None)


def raise_first(everybody: list[str | None], mine: str | None) -> None:
    """Of what all ranks found wrong, and this one."""
    for rank, theirs in enumerate(everybody):
        if theirs is not None:
            raise ValueError(theirs if theirs == mine else f"rank {rank}: {theirs}") from None
