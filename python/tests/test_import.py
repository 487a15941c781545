"""`import muster` alone is enough to reach the rest of the package, and what is not installed is named."""

from __future__ import annotations

import subprocess
import sys

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


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


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


@pytest.mark.parametrize("name", ["transformers", "torchtitan"])
def test_without_a_framework_the_error_names_it(name: str) -> None:
    printed = _run(_WITHOUT.format(name) + f"muster.integrations.{name}")
    assert f"muster.integrations.{name} needs {name}, which is not installed" in printed


def test_other_names_are_attribute_errors() -> None:
    assert "AttributeError: module 'muster' has no attribute 'tensorflow'" in _run("import muster; muster.tensorflow")
    printed = _run("import muster; muster.integrations.deepspeed")
    assert "AttributeError: module 'muster.integrations' has no attribute 'deepspeed'" in printed
