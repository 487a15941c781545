"""Every framework trains, saves and resumes with Muster on 2 ranks, from its example alone.

A run of 8 steps saves after 4. A second run starts in a folder that has only that checkpoint, as after an interruption,
and must print the same losses, to the last bit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "frameworks"
STEPS, SAVED = 8, 4


def _torchrun(script: str, *arguments: str) -> str:
    return _run(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], script, *arguments)


def _run(launch: list[str], script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *launch, str(Path(__file__).with_name("on_cpu.py")), str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout


def _losses(printed: str) -> dict[int, str]:
    """By step, as printed."""
    found = re.findall(r"^step (\d+) loss (\S+)$", printed, flags=re.MULTILINE)
    return {int(step): loss for step, loss in found}


def _keep(before: Path, after: Path, *names: str) -> None:
    """A folder with only these of the checkpoints in another; `was:is` renames one."""
    after.mkdir()
    for name in names:
        was, _, now = name.partition(":")
        path = before / was
        (shutil.copytree if path.is_dir() else shutil.copy)(path, after / (now or was))


@pytest.mark.parametrize(
    "script, checkpoint",
    [
        ("transformers_trainer.py", f"checkpoint-{SAVED}"),
        ("accelerate_fsdp2.py", "state"),
        ("lightning_ddp.py", f"step={SAVED}.ckpt:last.ckpt"),
        ("nanochat_ddp.py", "last.pt"),
    ],
)
def test_a_resumed_run_prints_the_losses_of_a_whole_one(tmp_path: Path, script: str, checkpoint: str) -> None:
    whole = _losses(_torchrun(script, str(tmp_path / "whole")))
    assert sorted(whole) == [*range(1, STEPS + 1)]
    assert float(whole[STEPS]) < float(whole[1])
    _keep(tmp_path / "whole", tmp_path / "resumed", checkpoint)
    resumed = _losses(_torchrun(script, str(tmp_path / "resumed"), "--resume"))
    assert {step: resumed[step] for step in range(SAVED + 1, STEPS + 1)} == {
        step: whole[step] for step in range(SAVED + 1, STEPS + 1)
    }


@pytest.mark.parametrize("script", ["transformers_trainer.py", "lightning_ddp.py", "nanochat_ddp.py"])
def test_an_example_runs_without_torchrun(tmp_path: Path, script: str) -> None:
    printed = _run([], script, str(tmp_path / "alone"), "--steps", "2", "--save-every", "1")
    assert sorted(_losses(printed)) == [1, 2]


def _titan_losses(printed: str) -> dict[int, tuple[str, str]]:
    """Loss and gradient norm by step, as torchtitan logs them."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    found = re.findall(r"step: +(\d+) +loss: +(\S+) +grad_norm: +(\S+)", plain)
    return {int(step): (loss, norm) for step, loss, norm in found}


def _titan_checkpoint(folder: Path) -> dict[str, object]:
    """Weights, optimizer state and positions, flat."""
    dcp_to_torch_save(folder, folder / "whole.pt")
    return torch.load(folder / "whole.pt", weights_only=False)


def test_a_resumed_run_of_torchtitan_ends_with_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    whole = _titan_losses(_torchrun("torchtitan_train.py", str(tmp_path / "whole")))
    assert sorted(whole) == [*range(1, STEPS + 1)]
    assert float(whole[STEPS][0]) < float(whole[1][0])
    (tmp_path / "resumed").mkdir()
    _keep(tmp_path / "whole" / "checkpoint", tmp_path / "resumed" / "checkpoint", f"step-{SAVED}")
    resumed = _titan_losses(_torchrun("torchtitan_train.py", str(tmp_path / "resumed")))
    assert resumed == {step: whole[step] for step in range(SAVED + 1, STEPS + 1)}
    ends = [_titan_checkpoint(tmp_path / run / "checkpoint" / f"step-{STEPS}") for run in ("whole", "resumed")]
    tensors = [{k: v for k, v in _flat(end).items() if isinstance(v, torch.Tensor)} for end in ends]
    assert sorted(tensors[0]) == sorted(tensors[1])
    assert any("momentum" in name for name in tensors[0])
    for name, tensor in tensors[0].items():
        assert torch.equal(tensor, tensors[1][name]), name


def _flat(nested: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(nested, dict):
        return {prefix: nested}
    return {name: value for key, inner in nested.items() for name, value in _flat(inner, f"{prefix}/{key}").items()}
