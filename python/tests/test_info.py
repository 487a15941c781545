"""What info() reports: the build, and this machine."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

import muster
import muster.torch


def test_it_names_the_versions() -> None:
    info = muster.torch.info()
    assert info["version"] == muster.__version__
    assert info["python"] == platform.python_version()
    assert info["torch"]["version"] == torch.__version__
    assert "torch" not in muster.info()


def test_it_names_the_kernels_of_this_machine() -> None:
    cpu = muster.info()["cpu"]
    flags = Path("/proc/cpuinfo").read_text().split()
    if platform.machine() == "x86_64":
        wide = all(f"avx512{part}" in flags for part in ("f", "bw", "dq", "vl"))
        assert cpu["elementwise"] == ("avx512" if wide else "avx2" if "avx2" in flags else "portable")
    assert cpu["blis"] and cpu["blis_version"]


def test_a_build_with_cuda_names_its_architectures_and_has_nccl() -> None:
    info = muster.info()
    if not info["cuda"]["built_in"]:
        pytest.skip("built without CUDA")
    assert info["cuda"]["architectures"] and info["cuda"]["runtime"]
    # pip's isolated builds had no NCCL: they could not download its header.
    assert info["nccl"]["built_in"]
    assert bool(info["nccl"]["version"]) != bool(info["nccl"]["missing"])


def test_it_prints_as_a_table_and_serializes() -> None:
    info = muster.torch.info()
    lines = str(info).splitlines()
    assert [line.split()[0] for line in lines] == ["muster", "CUDA", "NCCL", "MPI", "CPU", "Python", "PyTorch"]
    assert json.loads(json.dumps(info)) == info


def test_the_command_is_installed_and_reports_the_same() -> None:
    command = Path(sysconfig.get_path("scripts")) / "muster"
    assert shutil.which(command), "the wheel has no command"
    done = subprocess.run([command, "info", "--json"], capture_output=True, text=True, check=True)
    ours = {key: value for key, value in muster.info().items() if key != "python"}
    assert json.loads(done.stdout) == ours


GPU = {"name": "NVIDIA A100", "compute_capability": "8.0", "supported": False}


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("cuda", {"built_in": False}, "CUDA    not built in"),
        ("cuda", {"driver": None}, "CUDA    13.0, compiled for 90a-real; no driver"),
        ("cuda", {"driver": "13.0"}, "CUDA    13.0, compiled for 90a-real; the driver supports 13.0; no GPU"),
        ("cuda", {"driver": "13.0", "devices": [GPU]}, "NVIDIA A100 (compute capability 8.0, not compiled for)"),
        ("nccl", {"built_in": False}, "NCCL    not built in"),
        ("nccl", {"version": "2.28.9"}, "NCCL    2.28.9"),
        ("nccl", {"missing": "no file"}, "NCCL    built in; no library: no file"),
        ("mpi", {"built_in": True, "version": "Open MPI v4"}, "MPI     Open MPI v4"),
    ],
)
def test_every_state_has_a_line(part: str, value: dict, text: str) -> None:
    info = muster.info()
    info["cuda"] = {"built_in": True, "architectures": "90a-real", "runtime": "13.0", "driver": None, "devices": []}
    info["nccl"] = {"built_in": True, "version": None, "missing": None}
    info[part].update(value)
    assert text in str(info)
