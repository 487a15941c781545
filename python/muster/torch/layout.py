"""Where the elements of torch tensors are, in the engine's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from torch.distributed.tensor.placement_types import _StridedShard

from .. import _muster
from .ranks import Ranks, raise_first


@dataclass(frozen=True)
class AxisPlacement:
    """What one mesh axis does to a tensor: cuts ``dim``, or (None) nothing."""

    dim: int | None = None
    split_factor: int = 1


@dataclass(frozen=True)
class TensorLayout:
    """A parameter as one rank sees it: plain data that ranks can compare."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[tuple[str, int], ...]  # name and size
    ranks: tuple[int, ...]  # of the process group, row-major over the axes
    placements: tuple[AxisPlacement, ...]
    order: tuple[int, ...] = ()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of it that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _axis_placement(name: str, placement: Any) -> AxisPlacement:
    if isinstance(placement, Replicate):
        return AxisPlacement()
    # Before Shard, which it was once derived from.
    if isinstance(placement, _StridedShard):
        return AxisPlacement(placement.dim, int(placement.split_factor))
    if type(placement) is Shard:
        return AxisPlacement(placement.dim)
    raise ValueError(f"parameter '{name}': placement {placement} is not supported; Shard and Replicate are")


def _order(
    axes: Sequence[tuple[str, int]], placements: Sequence[AxisPlacement]
) -> tuple[list[AxisPlacement], list[int]]:
    """Which axes split first, and the placements then.

    FSDP2 over TP says ``_StridedShard(0, split_factor=tp), Shard(0)``: what it did was to split what each TP rank has.
    Read as "tp first" it is exact for uneven sizes too, where the strided form is not: 9 rows on fsdp=4, tp=2.
    """
    innermost: list[int] = []
    plain = list(placements)
    for axis, placement in enumerate(placements):
        if placement.split_factor == 1:
            continue
        inner = 1
        for later in range(axis + 1, len(placements)):
            if placements[later].dim == placement.dim:
                inner *= axes[later][1]
        if inner == placement.split_factor:
            plain[axis] = AxisPlacement(placement.dim)
            innermost.append(axis)
    # An axis with a split factor comes after all that follow it; several of them in the reverse order of the mesh.
    order = [a for a in range(len(placements)) if a not in innermost] + innermost[::-1]
    return plain, order


def read_layout(name: str, tensor: torch.Tensor, group: dist.ProcessGroup | None, declared: Any = None) -> TensorLayout:
    """The layout of a parameter: a DTensor's own, a declared one ``(mesh, placements)``, or replicated on the group."""
    dtype = str(tensor.dtype)
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    world = list(range(dist.get_world_size(group))) if group is not None else [0]
    if isinstance(tensor, DTensor):
        if declared is not None:
            raise ValueError(f"parameter '{name}': it is a DTensor, which says itself where it is; drop `placements`")
        mesh, placements = tensor.device_mesh, tensor.placements
        shape = tuple(tensor.shape)
    elif declared is not None:
        mesh, placements = declared
        shape = None
    else:
        return TensorLayout(
            name, tuple(tensor.shape), dtype, (("replicate", len(world)),), tuple(world), (AxisPlacement(),)
        )
    if group is None:
        raise ValueError(f"parameter '{name}' is on a mesh, but there is no process group")
    names = mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))
    axes = tuple((axis, int(size)) for axis, size in zip(names, mesh.mesh.shape))
    if len(placements) != len(axes):
        raise ValueError(f"parameter '{name}': {len(placements)} placements on a mesh of {len(axes)} axes")
    try:
        ranks = tuple(dist.get_group_rank(group, int(rank)) for rank in mesh.mesh.flatten().tolist())
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"parameter '{name}': its mesh has ranks that are not in the process group: {error}") from None
    dims = [_axis_placement(name, placement) for placement in placements]
    dims = [p if p.dim is None else replace(p, dim=p.dim % tensor.ndim) for p in dims]
    if shape is None:
        whole = list(tensor.shape)
        for (_, size), placement in zip(axes, dims):
            if placement.dim is not None:
                whole[placement.dim] *= size
        shape = tuple(whole)
    plain, order = _order(axes, dims)
    return TensorLayout(name, shape, dtype, axes, ranks, tuple(plain), tuple(order))


def local_shape(layout: TensorLayout, rank: int) -> tuple[int, ...]:
    """What rank ``rank`` has by the layout, as torch chunks: to be compared with what it really has."""
    if rank not in layout.ranks:
        return (0,)
    position = layout.ranks.index(rank)
    coordinates: list[int] = []
    for _, size in reversed(layout.axes):
        coordinates.insert(0, position % size)
        position //= size
    shape = list(layout.shape)
    for axis in layout.order or range(len(layout.axes)):
        placement, size = layout.placements[axis], layout.axes[axis][1]
        if placement.dim is None:
            continue
        held = 0
        total, chunks = shape[placement.dim], placement.split_factor
        chunk = -(-total // chunks)
        for begin in range(0, total, chunk) if chunk else ():
            length = min(chunk, total - begin)
            piece = -(-length // size)
            held += max(0, min(piece, length - coordinates[axis] * piece))
        shape[placement.dim] = held
    return tuple(shape)


def merge(views: Sequence[TensorLayout]) -> TensorLayout:
    """One layout of what all ranks see of a parameter.

    On a slice of a larger mesh each rank sees its own slice. Slices that do not share a rank are replicas of each
    other: the engine compares their weights.
    """
    first = views[0]
    for rank, view in enumerate(views):
        if replace(view, ranks=first.ranks) != first:
            what = next(
                f
                for f in ("name", "shape", "dtype", "axes", "placements", "order")
                if getattr(view, f) != getattr(first, f)
            )
            raise ValueError(
                f"parameter '{first.name}': ranks disagree on its {what}: {getattr(first, what)} on rank 0, "
                f"{getattr(view, what)} on rank {rank}"
            )
    slices = list(dict.fromkeys(view.ranks for view in views))
    if len(slices) == 1:
        return first
    together = [rank for ranks in slices for rank in ranks]
    if len(set(together)) != len(together):
        raise ValueError(f"parameter '{first.name}': ranks see meshes that overlap: {slices}")
    outer = "replicate"
    while outer in dict(first.axes):
        outer += "_"
    return replace(
        first,
        axes=((outer, len(slices)), *first.axes),
        ranks=tuple(together),
        placements=(AxisPlacement(), *first.placements),
        order=(0, *(axis + 1 for axis in first.order)) if first.order else (),
    )


class Meshes:
    """The meshes of a problem, each once, by what they contain."""

    def __init__(self) -> None:
        self.meshes: list[_muster.Mesh] = []
        self._index: dict[Any, int] = {}

    def layout(self, layout: TensorLayout) -> _muster.Layout:
        key = (layout.axes, layout.ranks)
        if key not in self._index:
            self._index[key] = len(self.meshes)
            names = [name for name, _ in layout.axes]
            sizes = [size for _, size in layout.axes]
            self.meshes.append(_muster.Mesh(f"mesh{len(self.meshes)}", names, sizes, list(layout.ranks)))
        placements = [
            _muster.Placement.replicate() if p.dim is None else _muster.Placement.shard(p.dim, p.split_factor)
            for p in layout.placements
        ]
        return _muster.Layout(self._index[key], placements, list(layout.order))


def agree(
    ranks: Ranks, layouts: list[TensorLayout], kind: str | None, error: str | None
) -> list[TensorLayout]:
    """One list of layouts from what all ranks see, on a kind of device. Raises what any rank found wrong, on all."""
    everybody = ranks.gather("the parameters", (layouts, kind, error))
    raise_first([theirs for _, _, theirs in everybody], error)
    for rank, (theirs, kind, _) in enumerate(everybody):
        if kind != everybody[0][1]:
            raise ValueError(f"ranks disagree: rank 0 is on {everybody[0][1]} and rank {rank} is on {kind}")
        if len(theirs) != len(everybody[0][0]):
            raise ValueError(
                f"ranks disagree: rank 0 has {len(everybody[0][0])} parameters and rank {rank} has {len(theirs)}"
            )
    return [merge(views) for views in zip(*(theirs for theirs, _, _ in everybody))]
