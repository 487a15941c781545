"""The code of reference pages runs, and does what the pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import muster
import muster.torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "docs"


def _run(script: str, *arguments: Path) -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_of_python(tmp_path: Path) -> None:
    printed = _run("reference_python.py", tmp_path)
    # Four parameters with three statistics each, the error of orthogonality of two matrices, and the norm of all gradients.
    assert printed.splitlines()[-1] == "[2, 4] 15"
    assert printed.splitlines()[-2] == "orthogonalize: True"  # every step of a loop of one's own lowers the loss
    for file in ("muster.json", "torch.json"):
        events = json.loads((tmp_path / file).read_text())["traceEvents"]
        assert any(event.get("cat") == "muster step" for event in events), file


def test_the_page_of_param_groups() -> None:
    chosen, trains = _run("reference_param_groups.py").splitlines()[-2:]
    assert "'matrices output_dim=1', ['block.my_stack']" in chosen and "('adamw', ['conv1.weight'" in chosen
    assert trains == "0.weight trains: True"


def test_the_pages_have_every_code_of_errors() -> None:
    codes = {name for name in dir(muster.ErrorCode) if isinstance(getattr(muster.ErrorCode, name), muster.ErrorCode)}
    assert "rank_missing" in codes
    for page in ("docs/reference/errors.md", "docs/api/python.rst"):
        text = (ROOT / page).read_text()
        assert [code for code in sorted(codes) if f"`{code}`" not in text] == [], page


def test_a_checkpoint_is_read_without_muster(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 4, bias=False)).to(torch.bfloat16)
    optimizer = muster.torch.NorMuon(
        muster.torch.param_groups(model, verbose=False, exclude="1.*"), bf16_weights="mantissa"
    )
    model(torch.randn(2, 8, dtype=torch.bfloat16)).float().square().sum().backward()
    optimizer.step()
    optimizer.save(tmp_path)
    sys.path.insert(0, str(EXAMPLES))
    try:
        from reference_read_checkpoint import tensors
    finally:
        sys.path.pop(0)
    read = dict(tensors(tmp_path))
    entries = {"0.weight": {"momentum", "variance"}, "0.bias": {"first", "second"}, "1.weight": {"first", "second"}}
    more = {"weight", "mantissa", "updates"}
    names = {f"{name}:{entry}" for name in entries for entry in entries[name] | more}
    assert set(read) == names | {":steps", ":seed"}
    for name, parameter in model.named_parameters():
        assert torch.equal(read[f"{name}:weight"], parameter.detach())
        for entry in entries[name] - {"variance"} | {"mantissa"}:
            assert torch.equal(read[f"{name}:{entry}"], optimizer.state[parameter][entry]), (name, entry)
    assert read["0.weight:variance"].numel() == 12  # one per row: the longer side
    assert f"0.bias:weight torch.bfloat16 {list(model[0].bias.shape)}" in _run("reference_read_checkpoint.py", tmp_path)
