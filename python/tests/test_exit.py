"""A script ends without a word on stderr, whatever keeps its optimizers alive."""

from __future__ import annotations

import subprocess
import sys

import pytest

# torch keeps the hooks of a parameter where Python's garbage collector does not see them. A hook keeps the globals of
# its module, and these keep the optimizers and the parameter: a cycle that lasts until the process ends.
STEP_IN_HOOKS = """
import torch, muster.torch
model = torch.nn.Linear(4, 4, bias=False)
optimizers = {p: muster.torch.NorMuon([("w", p)], threads=2) for p in model.parameters()}
def step(parameter):
    optimizers[parameter].step()
    parameter.grad = None
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
"""
OVERLAP = """
import torch, muster.torch
model = torch.nn.Linear(4, 4, bias=False)
optimizer = muster.torch.NorMuon(model.named_parameters(), overlap=True)
model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
"""
TRAIN = """
for _ in range(3):
    model(torch.ones(2, 4)).square().sum().backward()
    {}
"""


@pytest.mark.parametrize(
    "script",
    [STEP_IN_HOOKS + TRAIN.format("pass"), OVERLAP + TRAIN.format("optimizer.step(); optimizer.zero_grad()")],
    ids=["step in hooks", "overlap"],
)
def test_a_script_with_hooks_ends_quietly(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
