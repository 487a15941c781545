"""The example learns the same in every way it can be run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "examples" / "torch" / "train.py"


def _losses(how: str, ranks: int) -> list[float]:
    launch = [] if how == "none" else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launch, str(TRAIN), "--parallel", how, "--steps", "40"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]


def test_the_example_learns_the_same_in_every_way() -> None:
    alone = _losses("none", 1)
    assert alone[-1] < alone[0]
    for how, ranks in (("ddp", 2), ("fsdp", 3), ("fsdp-tp", 4)):
        # torch averages gradients in another order, and over parts of the batch that are not quite equal in size.
        assert _losses(how, ranks) == pytest.approx(alone, rel=0.01), how
