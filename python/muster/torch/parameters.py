"""What an optimizer wants to know of a parameter before it takes it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _muster
from .layout import TensorLayout, local, local_shape, read_layout
from .ranks import Ranks

DTYPES = {torch.float32: _muster.Dtype.f32, torch.bfloat16: _muster.Dtype.bf16}
HOW_TO_DECLARE = (
    " If its ranks are to differ (rank-local experts, say), say so: make it a DTensor, or give its group"
    " mesh=... and placements=[Shard(0)]. If they belong to another stage, give process_group=..."
)


class Reader:
    """Checks parameters and reads their layouts."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.declared: dict[torch.Tensor, Any] = {}  # (mesh, placements) of plain tensors
        self.device: torch.device | None = None  # of all of them

    def read(self, name: str, tensor: torch.Tensor) -> TensorLayout:
        """Raises ValueError naming the parameter."""
        if tensor.dtype not in DTYPES:
            raise ValueError(f"parameter '{name}': {tensor.dtype} is not supported; float32 and bfloat16 are")
        mine = local(tensor)
        self._check_device(name, mine.device)
        layout = read_layout(name, tensor, self._ranks.group, self.declared.get(tensor))
        if isinstance(tensor, DTensor):
            expected = local_shape(layout, self._ranks.rank)
            elements = 1
            for size in expected:
                elements *= size
            if mine.numel() != elements or (elements and tuple(mine.shape) != expected):
                raise ValueError(
                    f"parameter '{name}': rank {self._ranks.rank} has {tuple(mine.shape)} of it, where "
                    f"{tensor.placements} of {tuple(tensor.shape)} says {expected}"
                )
        return layout

    def _check_device(self, name: str, device: torch.device) -> None:
        """All parameters are on the device of the first."""
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"parameter '{name}' is on {device}: cpu and cuda are supported")
        if device.type == "cuda" and not _muster.cuda_available():
            raise ValueError(f"parameter '{name}' is on {device}: muster was built without CUDA, or sees no device")
        if self.device is None:
            self.device = device
        elif self.device != device:
            raise ValueError(
                f"parameter '{name}' is on {device}, others are on {self.device}: one optimizer, one device"
            )
