"""pip hides what a build prints: where it is goes to the terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core")

BACKEND = Path(__file__).parents[1] / "backend"
BUILD = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
import progress_backend
progress_backend.SECONDS_BETWEEN = 0
with progress_backend.progress_on_terminal():
    print("configuring")
    subprocess.run(["sh", "-c", "echo muster: building with CUDA >&2; echo '[1/12] one'; echo '[12/12] all'"], check=True)
    if sys.argv[2:] == ["fail"]:
        raise SystemExit("the compiler failed")
print("after")
"""


def _build(*arguments: str) -> tuple[int, str, str, str]:
    """Runs BUILD as pip does: exit status, its standard output and errors, and what the terminal shows."""
    terminal, theirs = pty.openpty()
    lead = "import fcntl, os, sys, termios; fcntl.ioctl(int(sys.argv.pop(1)), termios.TIOCSCTTY, 0)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", lead + BUILD, str(theirs), str(BACKEND), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    out, error = process.communicate(timeout=60)
    shown = b""
    try:
        while block := os.read(terminal, 65536):
            shown += block
    except OSError:  # the end, on Linux
        pass
    os.close(terminal)
    return process.returncode, out, error, shown.decode()


def test_the_terminal_shows_what_is_built_and_how_far_it_is() -> None:
    status, out, error, shown = _build()
    assert status == 0
    assert "muster: building with CUDA" in shown
    assert "muster: 1 of 12 steps, 0:0" in shown and "muster: 12 of 12 steps" in shown
    assert "configuring" not in shown


def test_all_output_still_arrives_where_it_went() -> None:
    _, out, error, _ = _build()
    assert out.splitlines() == ["configuring", "[1/12] one", "[12/12] all", "after"]
    assert error.splitlines() == ["muster: building with CUDA"]


def test_a_failed_build_fails_with_its_output() -> None:
    status, out, error, _ = _build("fail")
    assert status == 1
    assert "[12/12] all" in out
    assert "the compiler failed" in error


def test_without_a_terminal_nothing_changes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(BACKEND)],
        capture_output=True,
        text=True,
        start_new_session=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["configuring", "[1/12] one", "[12/12] all", "after"]
