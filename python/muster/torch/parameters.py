"""Checks parameters, reads their layouts, and makes the parameters of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _muster
from .groups import MATRIX_ALGORITHMS, make_parameter
from .layout import Meshes, TensorLayout, local, local_shape, read_layout
from .rank_local import Declared
from .ranks import Ranks
from .wrappers import check_parameter

DTYPES = {torch.float32: _muster.Dtype.f32, torch.bfloat16: _muster.Dtype.bf16}


class Reader:
    """Checks parameters and reads their layouts."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.declared: dict[torch.Tensor, Declared] = {}
        self.device: torch.device | None = None  # the device of all parameters

    def read(self, name: str, tensor: torch.Tensor) -> TensorLayout:
        """The layout that this rank sees. Raises ValueError that names the parameter."""
        check_parameter(name, tensor)
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


def make_parameters(
    ranks: Ranks, layouts: Sequence[TensorLayout], tensors: Sequence[torch.Tensor], groups: Sequence[Mapping[str, Any]]
) -> tuple[list[_muster.Parameter], list[_muster.Mesh]]:
    """The parameters and meshes of a problem, from the layouts that all ranks agreed on; ``groups`` has one per tensor.

    All ranks together. Raises ValueError that names a parameter, on all ranks.
    """
    meshes, parameters = Meshes(), []
    with ranks.together("the shapes of the parameters"):
        for layout, tensor, group in zip(layouts, tensors, groups):
            _check_rows(layout, group)
            parameter = make_parameter(layout.name, layout.shape, DTYPES[tensor.dtype], group)
            parameter.layout = meshes.layout(layout)
            parameters.append(parameter)
    return parameters, meshes.meshes


def _check_rows(layout: TensorLayout, group: Mapping[str, Any]) -> None:
    """Raises ValueError for rank-local rows without blocks: only the user knows if they are one matrix or several."""
    sizes = next((list(p.sizes) for p in layout.placements if p.sizes), None)
    cut = group["view"] or group["heads"] or group["split_rows"]
    if sizes is None or cut or group["algorithm"] not in MATRIX_ALGORITHMS:
        return
    if len(layout.shape) == 2 or group["flatten"]:
        raise ValueError(
            f"parameter '{layout.name}': rank_local joins the rows {sizes} of its ranks to the shape {layout.shape}: "
            f"give split_rows={sizes} if each rank has a matrix of its own, heads=1 if they are one matrix"
        )
