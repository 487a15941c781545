"""Reads which rank holds which elements of torch tensors, and translates it to layouts of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from torch.distributed.tensor.placement_types import _StridedShard

from .. import _muster
from .rank_local import Declared, Part, group_ranks, how_to_declare, other_axes, read_part
from .ranks import Ranks, raise_first


@dataclass(frozen=True)
class AxisPlacement:
    """What one mesh axis does to a tensor: it shards ``dim``, or replicates (None)."""

    dim: int | None = None
    split_factor: int = 1
    sizes: tuple[int, ...] = ()  # one per rank of the axis; (): cut as torch.chunk does


@dataclass(frozen=True)
class TensorLayout:
    """The layout of a parameter as one rank sees it: plain data that ranks can compare."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[tuple[str, int], ...]  # name and size
    ranks: tuple[int, ...]  # ranks of the process group, row-major over the axes
    placements: tuple[AxisPlacement, ...]
    order: tuple[int, ...] = ()
    part: Part | None = None  # of a rank-local parameter, until merge() has found the whole shape
    other_axes: tuple[str, ...] = field(default=(), compare=False)  # of the root mesh, for errors


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _axis_placement(name: str, placement: Any) -> AxisPlacement:
    if isinstance(placement, Replicate):
        return AxisPlacement()
    # Before Shard: older torch derives _StridedShard from it.
    if isinstance(placement, _StridedShard):
        return AxisPlacement(placement.dim, int(placement.split_factor))
    if type(placement) is Shard:
        return AxisPlacement(placement.dim)
    raise ValueError(f"parameter '{name}': placement {placement} is not supported; Shard and Replicate are")


def _order(
    axes: Sequence[tuple[str, int]], placements: Sequence[AxisPlacement]
) -> tuple[list[AxisPlacement], list[int]]:
    """The placements, and the order in which axes split.

    FSDP2 over TP has the placements ``_StridedShard(0, split_factor=tp), Shard(0)``, but splits what each TP rank has.
    Read as "tp first" the layout is exact for uneven sizes too, where the strided form is not: 9 rows on fsdp=4, tp=2.
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


def read_layout(
    name: str, tensor: torch.Tensor, group: dist.ProcessGroup | None, declared: Declared | None = None
) -> TensorLayout:
    """The layout of a parameter as this rank sees it: a DTensor's own, a declared one, or replicated on the group."""
    declared = declared or Declared()
    others = other_axes(tensor)
    layout = replace(_read_slice(name, tensor, group, declared), other_axes=others)
    if declared.rank_local is None:
        return layout
    return replace(layout, part=read_part(name, declared.rank_local, group, layout.ranks))


def _read_slice(
    name: str, tensor: torch.Tensor, group: dist.ProcessGroup | None, declared: Declared
) -> TensorLayout:
    """The layout on the mesh of the DTensor, or on the ``mesh`` of its param group."""
    dtype = str(tensor.dtype)
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    shape = tuple(tensor.shape)
    if isinstance(tensor, DTensor):
        if declared.mesh is not None:
            raise ValueError(
                f"parameter '{name}': it is a DTensor, which has a mesh and placements: drop those of its param group; "
                "`rank_local` declares an axis that they do not have"
            )
        mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    elif declared.mesh is not None:
        mesh, placements = declared.mesh, declared.placements
    elif declared.rank_local is not None:
        return TensorLayout(name, shape, dtype, (), (0 if group is None else dist.get_rank(group),), ())
    else:
        world = tuple(range(dist.get_world_size(group))) if group is not None else (0,)
        return TensorLayout(name, shape, dtype, (("replicate", len(world)),), world, (AxisPlacement(),))
    ranks = tuple(group_ranks(name, mesh, group))
    names = mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))
    axes = tuple((axis, int(size)) for axis, size in zip(names, mesh.mesh.shape))
    if len(placements) != len(axes):
        raise ValueError(f"parameter '{name}': {len(placements)} placements on a mesh of {len(axes)} axes")
    dims = [_axis_placement(name, placement) for placement in placements]
    dims = [p if p.dim is None else replace(p, dim=p.dim % tensor.ndim) for p in dims]
    if declared.mesh is not None:
        whole = list(shape)
        for (_, size), placement in zip(axes, dims):
            if placement.dim is not None:
                whole[placement.dim] *= size
        shape = tuple(whole)
    plain, order = _order(axes, dims)
    return TensorLayout(name, shape, dtype, axes, ranks, tuple(plain), tuple(order))


def local_shape(layout: TensorLayout, rank: int) -> tuple[int, ...]:
    """The shape that a rank has by the layout, cut as torch.chunk does; compared with the shape of its tensor."""
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
        if placement.sizes:
            shape[placement.dim] = placement.sizes[coordinates[axis]]
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
    """The layout of the whole parameter, from the layouts that all ranks see.

    On a slice of a larger mesh each rank sees its own slice. Slices without a common rank hold different parts of a
    rank-local parameter if their coordinates differ. Otherwise they are replicas: the engine compares their weights.
    """
    first = views[0]
    _check_alike(views)
    slices = list(dict.fromkeys(view.ranks for view in views))
    if len(slices) == 1 and first.part is None:
        return first
    together = [rank for ranks in slices for rank in ranks]
    if len(set(together)) != len(together):
        raise ValueError(f"parameter '{first.name}': ranks see meshes that overlap: {slices}")
    parts = [slices] if first.part is None else _split_by_part(views, slices, first.part.size)
    outer: list[tuple[str, int]] = []
    placements: list[AxisPlacement] = []
    if len(parts[0]) > 1:
        outer.append((_unused("replicate", first.axes), len(parts[0])))
        placements.append(AxisPlacement())
    shape = first.shape
    if first.part is not None:
        outer.append((_unused(first.part.axis, (*first.axes, *outer)), len(parts)))
        sizes = tuple(views[part[0][0]].shape[0] for part in parts)
        placements.append(AxisPlacement(0, sizes=sizes))
        shape = (sum(sizes), *shape[1:])
    order = (*range(len(outer)), *(axis + len(outer) for axis in first.order)) if first.order else ()
    return replace(
        first,
        shape=shape,
        axes=(*outer, *first.axes),
        ranks=tuple(rank for replica in zip(*parts) for ranks in replica for rank in ranks),
        placements=(*placements, *first.placements),
        order=order,
        part=None,
    )


def _check_alike(views: Sequence[TensorLayout]) -> None:
    """Raises ValueError if ranks disagree about anything but the slice and part of a parameter that they hold."""
    first = views[0]
    for rank, view in enumerate(views):
        for what in ("name", "part", "shape", "dtype", "axes", "placements", "order") if view != first else ():
            here, there = _without_part(first, what), _without_part(view, what)
            if here == there:
                continue
            called, advice = "rank_local" if what == "part" else what, ""
            if what == "shape" and first.part is not None:
                called += " beyond dimension 0"
            elif what == "shape" and here[1:] == there[1:]:
                advice = f"; {how_to_declare(first.name, first.other_axes)}"
            raise ValueError(
                f"parameter '{first.name}': ranks disagree on its {called}: {here} on rank 0, "
                f"{there} on rank {rank}{advice}"
            )


def _without_part(view: TensorLayout, what: str) -> Any:
    """A field of a view, without the values in which parts of one rank-local parameter may differ."""
    value = getattr(view, what)
    if what == "part":
        return str(value)
    return value[1:] if what == "shape" and view.part is not None else value


def _split_by_part(
    views: Sequence[TensorLayout], slices: Sequence[tuple[int, ...]], count: int
) -> list[list[tuple[int, ...]]]:
    """For each part of a rank-local parameter, the slices that hold it."""
    name = views[0].name
    parts: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
    for ranks in slices:
        coordinates = {part.coordinate for rank in ranks if (part := views[rank].part) is not None}
        if len(coordinates) != 1:
            raise ValueError(
                f"parameter '{name}': ranks {list(ranks)} share it, but have coordinates {sorted(coordinates)} on "
                f"rank_local {views[0].part}: its own mesh must not cross that axis"
            )
        parts[coordinates.pop()].append(ranks)
    for coordinate, holders in enumerate(parts):
        if len(holders) != len(parts[0]):
            raise ValueError(
                f"parameter '{name}': rank_local {views[0].part}: {len(parts[0])} slices of ranks have coordinate 0, "
                f"{len(holders)} have coordinate {coordinate}"
            )
        sizes = [views[rank].shape[0] for ranks in holders for rank in ranks]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"parameter '{name}': replicas of part {coordinate} of rank_local {views[0].part} have sizes {sizes} "
                f"in dimension 0, on ranks {[rank for ranks in holders for rank in ranks]}"
            )
    return parts


def _unused(name: str, axes: Sequence[tuple[str, int]]) -> str:
    while name in dict(axes):
        name += "_"
    return name


class Meshes:
    """The meshes of a problem, without duplicates."""

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
        shard, replicate = _muster.Placement.shard, _muster.Placement.replicate
        placements = [
            replicate() if p.dim is None else shard(p.dim, p.split_factor, list(p.sizes)) for p in layout.placements
        ]
        return _muster.Layout(self._index[key], placements, list(layout.order))


def agree(
    ranks: Ranks, layouts: list[TensorLayout], kind: str | None, error: str | None
) -> list[TensorLayout]:
    """The layouts of all parameters, from those that all ranks see. All ranks together.

    ``kind`` is the type of this rank's device, ``error`` what it found wrong. Raises ValueError on all ranks.
    """
    everybody = ranks.gather("the parameters", (layouts, kind, error))
    raise_first([theirs for _, _, theirs in everybody], error)
    for rank, (theirs, kind, _) in enumerate(everybody):
        if kind != everybody[0][1]:
            raise ValueError(f"ranks disagree: rank 0 is on {everybody[0][1]} and rank {rank} is on {kind}")
        if len(theirs) != len(everybody[0][0]):
            raise ValueError(
                f"ranks disagree: rank 0 has {len(everybody[0][0])} parameters and rank {rank} has {len(theirs)}: all "
                "ranks of process_group= share all parameters; one pipeline stage is a process group of its own, and "
                "wrappers that divide parameters among ranks (ZeroRedundancyOptimizer) are not supported"
            )
    return [merge(views) for views in zip(*(theirs for theirs, _, _ in everybody))]
