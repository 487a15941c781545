"""`import muster` alone is enough to reach the rest of the package, and what is not installed is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name="{0}")
sys.meta_path.insert(0, Missing())
import muster
print(muster.__version__)
"""


# Two ranks whose owners keep the state of replicas: the engine gets all of it when a state is loaded.
_TWO_RANKS = """
import sys
sys.modules["numpy"] = None
import torch
import torch.distributed as dist
import muster.torch
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
weight = torch.nn.Parameter(torch.ones(6, 4))
def make():
    return muster.torch.NorMuon([("w", weight)], grad_sync=True, replicate_state=False)
first, second = make(), make()
(weight * torch.sin(weight.detach() + rank)).sum().backward()
first.step()
state = first.state_dict()
second.load_state_dict(state)
momentum = [optimizer.state_dict()["state"][0]["momentum"] for optimizer in (first, second)]
assert momentum[0].any() and torch.equal(*momentum)
print("loaded")
"""


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _run(program: str) -> str:
    return _start(program).communicate(timeout=120)[0]


def test_muster_torch_is_imported_when_it_is_used() -> None:
    printed = _run(
        "import sys, muster\n"
        "assert 'torch' not in sys.modules\n"
        "print(muster.torch.NorMuon.__name__, muster.integrations.__name__)\n"
        "assert 'transformers' not in sys.modules\n"
    )
    assert printed.split() == ["NorMuon", "muster.integrations"]


@pytest.mark.parametrize("use", ["muster.torch", "from muster import torch"])
def test_without_torch_the_error_says_so(use: str) -> None:
    printed = _run(_WITHOUT.format("torch") + use)
    assert printed.startswith("0.")
    assert "ModuleNotFoundError: muster.torch needs PyTorch 2.7 or later, which is not installed" in printed


# torch does not bring NumPy, and load_state_dict failed without it.
def test_numpy_is_not_needed(tmp_path: Path) -> None:
    ranks = [_start(_TWO_RANKS, str(rank), str(tmp_path / "store")) for rank in range(2)]
    for rank in ranks:
        printed = rank.communicate(timeout=120)[0]
        assert rank.returncode == 0 and printed.endswith("loaded\n"), printed


@pytest.mark.parametrize("name", ["transformers", "torchtitan"])
def test_without_a_framework_the_error_names_it(name: str) -> None:
    printed = _run(_WITHOUT.format(name) + f"muster.integrations.{name}")
    assert f"muster.integrations.{name} needs {name}, which is not installed" in printed


def test_other_names_are_attribute_errors() -> None:
    assert "AttributeError: module 'muster' has no attribute 'tensorflow'" in _run("import muster; muster.tensorflow")
    printed = _run("import muster; muster.integrations.deepspeed")
    assert "AttributeError: module 'muster.integrations' has no attribute 'deepspeed'" in printed
