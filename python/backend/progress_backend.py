"""The build backend: scikit-build-core, with progress on the terminal.

Compiling takes minutes, and pip shows none of a backend's output unless it is called with -v. This backend passes all
output on, and writes where the build is to the controlling terminal, if there is one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from typing import Iterator, Mapping, Optional, TextIO, Union

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403  hooks that need no progress

Settings = Optional[Mapping[str, Union[str, "list[str]"]]]

STEP = re.compile(rb"\[([1-9]\d*)/(\d+)\]")  # ninja's status
SECONDS_BETWEEN = 1.0


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    with progress_on_terminal():
        return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    with progress_on_terminal():
        return _backend.build_editable(wheel_directory, config_settings, metadata_directory)


class Progress:
    """Reads lines of output, and shows on a terminal what they say about the build."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._begin = time.monotonic()
        self._last = 0.0
        self._lock = threading.Lock()
        terminal.write("\n")  # pip waits at the end of a line of its own

    def line(self, line: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            step = STEP.match(line)
            if line.startswith(b"muster: "):
                self._show(line.decode(errors="replace").rstrip(), end="\n")
            elif step and (time.monotonic() - self._last >= SECONDS_BETWEEN or step[1] == step[2]):
                self._last = time.monotonic()
                minutes, seconds = divmod(int(self._last - self._begin), 60)
                # pip's spinner takes the place of the last character.
                self._show(f"muster: {int(step[1])} of {int(step[2])} steps, {minutes}:{seconds:02d}  ", end="")

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._show("", end="")
            self._terminal.close()

    def _show(self, text: str, end: str) -> None:
        self._terminal.write(f"\r\x1b[K{text}{end}")
        self._terminal.flush()


@contextlib.contextmanager
def progress_on_terminal() -> Iterator[None]:
    """Shows the progress of what runs inside, unless its output goes to a terminal anyway."""
    try:
        terminal = None if os.isatty(1) else open("/dev/tty", "w")
    except OSError:  # no terminal: a service, CI, a container
        terminal = None
    if terminal is None:
        yield
        return
    progress = Progress(terminal)
    try:
        with watched(1, progress), watched(2, progress):
            yield
    finally:
        progress.finish()


@contextlib.contextmanager
def watched(descriptor: int, progress: Progress) -> Iterator[None]:
    """Lets `progress` read what this process and its children write to `descriptor`, and passes it on."""
    sys.stdout.flush()
    sys.stderr.flush()
    real = os.dup(descriptor)
    read, write = os.pipe()
    os.dup2(write, descriptor)
    os.close(write)

    def pass_on() -> None:
        with os.fdopen(read, "rb") as lines, os.fdopen(real, "wb", closefd=False) as to:
            for line in lines:
                to.write(line)
                to.flush()
                progress.line(line)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(real, descriptor)
        thread.join(timeout=10)  # a server that the build started (sccache) may keep the pipe open
        if not thread.is_alive():
            os.close(real)
