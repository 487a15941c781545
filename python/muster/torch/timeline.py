"""Timelines of Muster's steps, on the clock of torch.profiler."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

Event = dict[str, Any]
#: (name, exchange, wave or -1, begin, end, bytes), in ns of the monotonic clock
EngineEvent = tuple[str, bool, int, int, int, int]

#: Larger than the thread ids that torch uses for its tracks.
_FIRST_TRACK = 1_000_000_000
_EXCHANGES = 1000  # tracks of exchanges come this much later
#: torch writes times relative to a multiple of this, so that they keep their nanoseconds.
_EPOCH_SECONDS = 7_889_238


@dataclass(frozen=True)
class _Step:
    name: str
    begin_ns: int
    end_ns: int
    to_unix_ns: int  # added to these times and those of the events, it gives Unix time
    events: list[EngineEvent]


class profile:  # lower case, as torch.profiler.profile
    """Records the steps of every Muster optimizer of this process, and writes them as a Chrome trace.

        with muster.torch.profile("muster.json") as timeline:
            optimizer.step()

    The file opens in Perfetto and chrome://tracing. Times agree with torch.profiler's traces to a few
    microseconds: ``timeline.add_to("torch.json")`` adds the steps to such a trace, under the same process. Computation
    and exchanges have tracks of their own. Each rank writes its own file.

    On CUDA a profiled step waits for its end. Over NCCL all ranks profile a step or none. Contexts may be nested or
    overlap; each has all steps made in it.

    Args:
        path: the file to write when the context ends; on several ranks ``muster.json`` becomes ``muster.rank3.json``.
            Default None: no file; use ``save`` and ``add_to``.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else _own_path(Path(path))
        self._steps: list[_Step] = []

    def __enter__(self) -> profile:
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.remove(self)
        if self.path is not None:
            self.save(self.path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline alone to ``path``, as a Chrome trace."""
        base = time.time_ns() // (_EPOCH_SECONDS * 10**9) * (_EPOCH_SECONDS * 10**9)
        name = {"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0, "args": {"name": _process_name()}}
        trace = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base, "traceEvents": [name, *self.events(base)]}
        Path(path).write_text(json.dumps(trace) + "\n")

    def add_to(self, path: str | os.PathLike[str]) -> None:
        """Adds the timeline to the trace at ``path``.

        ``torch.profiler.profile.export_chrome_trace`` wrote it in this process.
        """
        trace = json.loads(Path(path).read_text())
        trace["traceEvents"] += self.events(int(trace.get("baseTimeNanoseconds", 0)))
        Path(path).write_text(json.dumps(trace) + "\n")

    def events(self, base_ns: int = 0) -> list[Event]:
        """Chrome trace events, in microseconds since ``base_ns`` (Unix time, in ns; default 0: 1970)."""
        tracks = _Tracks(base_ns)
        for step in self._steps:
            tracks.add(step)
        return tracks.named()


class _Tracks:
    """Tracks for computation (several on a device, which computes concurrently) and for exchanges."""

    def __init__(self, base_ns: int) -> None:
        self._base_ns = base_ns
        self._events: list[Event] = []
        self._busy_until: tuple[list[int], list[int]] = ([0], [])  # per track: computation, exchanges

    def add(self, step: _Step) -> None:
        shift = step.to_unix_ns - self._base_ns
        # On a device a step may end after the call.
        begin = min([step.begin_ns, *(event[3] for event in step.events)])
        end = max([step.end_ns, *(event[4] for event in step.events)])
        self._emit(_FIRST_TRACK, step.name, "muster step", begin + shift, end + shift, {})
        # Of two events that begin together, the longer one encloses the other.
        for name, exchange, wave, first, last, size in sorted(step.events, key=lambda e: (e[3], -e[4])):
            track = self._track(exchange, first + shift, last + shift)
            details = ({"wave": wave} if wave >= 0 else {}) | ({"bytes": size} if size > 0 else {})
            kind = "muster exchange" if exchange else "muster compute"
            self._emit(track, name, kind, first + shift, last + shift, details)

    def _track(self, exchange: bool, begin_ns: int, end_ns: int) -> int:
        """The first free track: slices of one track must nest."""
        tracks = self._busy_until[exchange]
        track = next((i for i, busy in enumerate(tracks) if busy <= begin_ns), len(tracks))
        tracks[track : track + 1] = [end_ns]
        return self._number(exchange, track)

    @staticmethod
    def _number(exchange: bool, track: int) -> int:
        return _FIRST_TRACK + (_EXCHANGES if exchange else 0) + track

    def _emit(self, track: int, name: str, kind: str, begin_ns: int, end_ns: int, details: Event) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "pid": os.getpid(), "tid": track}
        event |= {"ts": begin_ns / 1e3, "dur": max(0, end_ns - begin_ns) / 1e3}
        self._events.append(event | ({"args": details} if details else {}))

    def named(self) -> list[Event]:
        out = list(self._events)
        for exchange, tracks in enumerate(self._busy_until):
            for track in range(len(tracks)):
                number = self._number(bool(exchange), track)
                for what, value in (
                    ("thread_name", {"name": f"muster {'exchange' if exchange else 'compute'} {track + 1}"}),
                    ("thread_sort_index", {"sort_index": number}),
                ):
                    out.append({"ph": "M", "name": what, "pid": os.getpid(), "tid": number, "args": value})
        return out


_active: list[profile] = []


def recording() -> bool:
    """True if the next step is to be traced."""
    return bool(_active)


def record(name: str, begin_ns: int, events: list[EngineEvent]) -> None:
    """Adds a step that has just ended to every active profile. Times are of the monotonic clock."""
    step = _Step(name, begin_ns, time.monotonic_ns(), _to_unix_ns(), events)
    for each in _active:
        each._steps.append(step)


def _to_unix_ns() -> int:
    """Unix time minus the monotonic clock, from the fastest of five readings."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, unix - (before + after) // 2))
    return min(tries)[1]


def _many_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _own_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.rank{dist.get_rank()}{path.suffix}") if _many_ranks() else path


def _process_name() -> str:
    return f"muster rank {dist.get_rank()}" if _many_ranks() else "muster"
