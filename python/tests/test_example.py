"""The examples run in every way they offer, and learn the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"
OPTIONS = ["--steps", "3", "--print-every", "1"]


def _losses(command: list[str], **environment: str) -> list[float]:
    done = subprocess.run(
        command,
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 3
    return losses


def _alone(script: str) -> list[float]:
    return _losses([sys.executable, script, *OPTIONS])


def _torchrun(ranks: int, script: str, *options: str) -> list[float]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return _losses([sys.executable, *launch, script, *options, *OPTIONS])


@pytest.fixture(scope="module")
def alone() -> list[float]:
    losses = _alone("train.py")
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize("ranks, how", [(2, "ddp"), (3, "fsdp"), (4, "fsdp-tp")])
def test_the_gpt_learns_the_same_in_every_way(ranks: int, how: str, alone: list[float]) -> None:
    # torch averages gradients in another order, and over parts of the batch that are not quite equal in size.
    assert _torchrun(ranks, "train.py", "--parallel", how) == pytest.approx(alone, rel=0.01)


def test_qk_clip_bounds_the_logits() -> None:
    """Ranks that each see their own largest logits; plain PyTorch records them."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for command in ([sys.executable], [sys.executable, *launch]):
        done = subprocess.run([*command, "qk_clip.py"], cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        largest = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
        assert len(largest) == 6
        plain, clipped = largest[2], largest[5]
        # Twice tau: the rows are scaled for the batch that was seen, and the next update and batch move logits again.
        assert clipped < 2 * 2.0 < plain


def test_experts_learn_the_same_on_four_ranks() -> None:
    losses = _alone("moe.py")
    assert losses[-1] < losses[0]
    assert _torchrun(4, "moe.py") == pytest.approx(losses, rel=1e-3)


def test_the_slurm_script_starts_the_ranks_of_a_node(tmp_path: Path, alone: list[float]) -> None:
    """With stand-ins for Slurm's commands: one node, which is this one."""
    for name, line in {
        "scontrol": "echo localhost",
        "srun": 'exec "$@"',
        "python": f'exec {sys.executable} "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7", "PORT": "0"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEVICE": "cpu", "RANKS_PER_NODE": "2"}
    losses = _losses(["bash", "train.slurm", "train.py", "--parallel", "fsdp", *OPTIONS], **slurm, **path)
    assert losses == pytest.approx(alone, rel=0.01)


def test_plots_are_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from svg import Line, Plot

    lines = [Line("a & b", [1, 2, 4], [3.0, 2.5, 2.25]), Line("c", [1, 2, 4], [3.0, 2.0, 1.0], dashed=True)]
    Plot("title", "step", "loss", lines, log_x=True).write(tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    curves = [e for e in root if e.tag.endswith("polyline")]
    assert [len(curve.get("points", "").split()) for curve in curves] == [3, 3]
    # Equal factors are equal distances.
    x = [float(point.split(",")[0]) for point in curves[0].get("points", "").split()]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    texts = [e.text for e in root if e.tag.endswith("text")]
    assert {"a & b", "c", "title", "step"} <= set(texts)


def test_a_training_step_is_timed() -> None:
    small = "--device cpu --layers 1 --width 64 --vocabulary 64 --context 8 --batch 2 --steps 2 --warm-up 1".split()
    program = Path(__file__).parents[2] / "benchmarks" / "torch_step.py"
    done = subprocess.run([sys.executable, program, "muster", "adamw", *small], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["optimizer"] for row in rows] == ["muster", "adamw"]
    assert all(row["ms"] >= row["step_ms"] > 0 and 0 < row["loss"] < 10 for row in rows)
