"""Versions of this build of Muster and of the installed PyTorch."""

from __future__ import annotations

import torch

from ..build_info import Info
from ..build_info import info as build_info


def info() -> Info:
    """The report of ``muster.info()``, with the version of PyTorch and the CUDA and NCCL that it was built for.

    ``print(muster.torch.info())`` is a table for reports of problems.
    """
    found = build_info()
    found["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda, "nccl": _torch_nccl()}
    return found


def _torch_nccl() -> str | None:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
