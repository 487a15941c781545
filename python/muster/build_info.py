"""What this build of Muster contains and what it finds on this machine."""

from __future__ import annotations

import json
import platform
from typing import Any

from ._muster import build_info


class Info(dict[str, Any]):
    """What ``info`` found: a dict that prints as a table. Versions are text, None where there is nothing."""

    def rows(self) -> list[tuple[str, str]]:
        """Name and text of each line of the table."""
        rows = [
            ("muster", self["version"]),
            ("CUDA", _cuda_text(self["cuda"])),
            ("NCCL", _nccl_text(self["nccl"])),
            ("MPI", (self["mpi"]["version"] or "built in") if self["mpi"]["built_in"] else "not built in"),
            ("CPU", "{elementwise} kernels, BLIS {blis_version} for {blis}".format(**self["cpu"])),
            ("Python", self["python"]),
        ]
        if "torch" in self:
            rows.append(("PyTorch", _torch_text(self["torch"])))
        return rows

    def __repr__(self) -> str:
        return "\n".join(f"{name:<8}{text}" for name, text in self.rows())


def info() -> Info:
    """Versions, CUDA architectures, NCCL, MPI and CPU kernels of this build, and what it finds on this machine.

    Initializes the CUDA driver, as ``torch.cuda.is_available()`` does, and opens libnccl if there is one. A missing
    GPU, driver or library is reported, never raised.
    """
    return Info(json.loads(build_info()), python=platform.python_version())


def _cuda_text(cuda: dict[str, Any]) -> str:
    if not cuda["built_in"]:
        return "not built in"
    text = f"{cuda['runtime']}, compiled for {cuda['architectures']}"
    if cuda["driver"] is None:
        return f"{text}; no driver"
    gpus = [
        f"{gpu['name']} (compute capability {gpu['compute_capability']}{'' if gpu['supported'] else ', not compiled for'})"
        for gpu in cuda["devices"]
    ]
    return "; ".join([text, f"the driver supports {cuda['driver']}", *(gpus or ["no GPU"])])


def _nccl_text(nccl: dict[str, Any]) -> str:
    if not nccl["built_in"]:
        return "not built in"
    return nccl["version"] or f"built in; no library: {nccl['missing']}"


def _torch_text(torch: dict[str, Any]) -> str:
    nccl = f", NCCL {torch['nccl']}" if torch["nccl"] else ""
    return f"{torch['version']} ({'CUDA ' + torch['cuda'] if torch['cuda'] else 'no CUDA'}{nccl})"
