"""A process that exits with an error fails its trial, also if all its ranks say that they are done.

    test_chaos.py CHAOS_RANK

The driver ignored the status of a process whose ranks are threads, and so missed what went wrong as it ended.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from chaos import Trial


def run(program: str, seed: int) -> subprocess.CompletedProcess[str]:
    driver = str(Path(__file__).with_name("chaos.py"))
    command = [sys.executable, "-B", driver, program, "--seed", str(seed), "--comms", "local"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    program = sys.argv[1]
    # One that nothing kills, and that begins at step 0: else the training before it fails first.
    seed = next(seed for seed in itertools.count() if _is_mild(Trial(seed, ["local"])))
    with tempfile.TemporaryDirectory() as folder:
        failing = Path(folder) / "failing"
        failing.write_text(f'#!/bin/sh\n"{program}" "$@" || exit\n[ "$1" != train ] || exit 3\n')
        failing.chmod(0o755)
        well, badly = run(program, seed), run(str(failing), seed)
    for name, done, status, said in (("well", well, 0, "0 failed"), ("badly", badly, 1, "exit status 3\n")):
        if done.returncode != status or said not in done.stdout:
            print(f"a trial that ends {name}: status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
            return 1
    return 0


def _is_mild(trial: Trial) -> bool:
    return trial.begin == 0 and trial.phase == "step" and trial.action == "delay" and trial.short


if __name__ == "__main__":
    sys.exit(main())
