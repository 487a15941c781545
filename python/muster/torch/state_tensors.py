"""State tensors: torch allocates them, laid out like their parameter; the engine updates them in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from .layout import local

State = dict[str, torch.Tensor]
#: Counters. The last two belong to the optimizer as a whole: one tensor for all parameters.
COUNTERS = ("updates", "steps", "seed")
MOST_STEPS = 2**53


@dataclass(frozen=True)
class Statistics:
    """NorMuon's mean squares of one parameter, on the parameter's own mesh: one dimension per axis, None replicates."""

    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dims: tuple[int | None, ...]


def zeros_like(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Contiguous zeros laid out like the parameter; a DTensor for a DTensor."""
    mine = local(parameter.detach())
    memory = torch.zeros(mine.shape, dtype=dtype, device=mine.device)
    if not isinstance(parameter, DTensor):
        return memory
    return _spread(memory, parameter, parameter.shape, parameter.placements)


def zero_statistics(parameter: torch.Tensor, statistics: Statistics) -> torch.Tensor:
    """Mean squares of zero; a DTensor on the mesh of a DTensor."""
    memory = torch.zeros(statistics.local_shape, dtype=torch.float32, device=local(parameter.detach()).device)
    if not isinstance(parameter, DTensor):
        return memory
    last = len(statistics.shape) - 1
    placements = [
        Replicate() if dim is None else own if dim < last else Shard(dim)  # batch dimensions: as in the parameter
        for dim, own in zip(statistics.dims, parameter.placements)
    ]
    return _spread(memory, parameter, statistics.shape, placements)


def _spread(memory: torch.Tensor, like: DTensor, shape: Sequence[int], placements: Sequence[Any]) -> torch.Tensor:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(1, size)
    return DTensor.from_local(
        memory, like.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )


def check_fits(of: str, entry: str, value: Any, into: torch.Tensor) -> None:
    """Raises ValueError that names parameter and entry if ``fill(value, into)`` would fail."""
    what = f"state of '{of}': {entry}"
    if entry in COUNTERS:
        size = value.numel() if isinstance(value, torch.Tensor) else 1
        if size != 1 or not isinstance(value, (int, float, torch.Tensor)):
            raise ValueError(f"{what} is {_describe(value)}, expected a number")
        if entry != "seed" and not 0 <= float(value) <= MOST_STEPS:
            raise ValueError(f"{what} is {value if isinstance(value, (int, float)) else value.item()}, expected 0 to 2^53")
        return
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise ValueError(f"{what} is {_describe(value)}, expected a dense tensor")
    # Earlier versions saved mean squares flat, and parameters without dimensions as vectors.
    flat = entry == "variance" and value.ndim == 1 and value.numel() == into.numel()
    if value.shape != into.shape and not flat and not (into.ndim == 0 and value.numel() == 1):
        raise ValueError(f"{what} has shape {tuple(value.shape)}, expected {tuple(into.shape)}")
    if _as(value, into).dtype != into.dtype and not (value.is_floating_point() and into.is_floating_point()):
        raise ValueError(f"{what} is {value.dtype}, expected {into.dtype}")
    if isinstance(into, DTensor) and not same_layout(value, into) and is_uneven_stride(into):
        raise ValueError(f"{what}: {UNEVEN.format(tuple(into.shape), into.placements)}")
    if entry in ("variance", "second") and (local(value) < 0).any():
        raise ValueError(f"{what} has {local(value).min().item():g}, expected no negative mean of squares")


def _as(value: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """Reads int16 as uint16, which torch does not pickle: the same bits."""
    return value.view(torch.uint16) if (value.dtype, into.dtype) == (torch.int16, torch.uint16) else value


def to_pickle(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """``opt.state``, with int16 in place of uint16."""
    out: dict[Any, Any] = defaultdict(dict)
    for key, entries in state.items():
        out[key] = entries
        if isinstance(entries, dict):
            out[key] = {
                name: value.view(torch.int16) if getattr(value, "dtype", None) == torch.uint16 else value
                for name, value in entries.items()
            }
    return out


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return str(value.layout) if value.layout is not torch.strided else f"a tensor of shape {tuple(value.shape)}"


def same_layout(value: Any, like: torch.Tensor) -> bool:
    """True if both are plain, or DTensors whose local parts correspond."""
    if not isinstance(value, DTensor) or not isinstance(like, DTensor):
        return not isinstance(value, DTensor) and not isinstance(like, DTensor)
    return value.device_mesh == like.device_mesh and value.placements == like.placements and value.shape == like.shape


def is_same_memory(value: Any, into: torch.Tensor) -> bool:
    """True if an entry already has the dtype, device, layout and shape of ``into``, so that it may stay."""
    if not isinstance(value, torch.Tensor) or not same_layout(value, into):
        return False
    mine, wanted = local(value), local(into)
    alike = (mine.dtype, mine.device, mine.shape) == (wanted.dtype, wanted.device, wanted.shape)
    return alike and mine.is_contiguous()


@torch.no_grad()
def fill(value: Any, into: torch.Tensor) -> None:
    """Copies an entry in any layout. Local, except for a DTensor in another layout: all ranks of its mesh together."""
    mine = local(into)
    if not isinstance(value, torch.Tensor):
        mine.fill_(int(value))
        return
    value = _as(value, into)
    if value.numel() == 1 and not isinstance(value, DTensor):
        mine.copy_(value.reshape(()).expand(mine.shape))
    elif same_layout(value, into):
        mine.copy_(local(value).reshape(mine.shape))
    else:
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        mine.copy_(part_of(whole.reshape(into.shape), into))


def part_of(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor if it is laid out like ``like``. Local."""
    if not isinstance(like, DTensor):
        return whole
    return local(distribute_tensor(whole.detach(), like.device_mesh, like.placements, src_data_rank=None))


UNEVEN = (
    "shape {} is divided unevenly by {}, and DTensors do not describe where such elements are: use opt.save() and "
    "opt.load() for checkpoints"
)


def is_uneven_stride(tensor: torch.Tensor) -> bool:
    """True if FSDP2 sharded a DTensor over another axis into parts that its placements do not describe.

    FSDP2 cuts the part of each rank of the inner axis. Placements with _StridedShard describe the same parts only if
    the inner axis cuts evenly.
    """
    if not isinstance(tensor, DTensor):
        return False
    for dim in {p.dim for p in tensor.placements if isinstance(p, _StridedShard)}:
        cuts = [
            (axis, int(size), int(p.split_factor) if isinstance(p, _StridedShard) else 1)
            for axis, (size, p) in enumerate(zip(tensor.device_mesh.mesh.shape, tensor.placements))
            if isinstance(p, (Shard, _StridedShard)) and p.dim == dim
        ]
        strided = [(axis, size, 1) for axis, size, factor in cuts if factor > 1]
        made = [cut for cut in cuts if cut[2] == 1] + strided[::-1]
        if _held(tensor.shape[dim], cuts) != _held(tensor.shape[dim], made):
            return True
    return False


def _held(count: int, cuts: Sequence[tuple[int, int, int]]) -> dict[tuple[tuple[int, int], ...], list[int]]:
    """The lines of ``count`` that each rank holds after cuts (axis, size, split factor), by its place on the axes."""
    held: dict[tuple[tuple[int, int], ...], torch.Tensor] = {(): torch.arange(count)}
    for axis, size, factor in cuts:
        after = {}
        for places, lines in held.items():
            pieces = [piece.chunk(size) for piece in lines.chunk(factor)]
            for place in range(size):
                mine = [piece[place] for piece in pieces if place < len(piece)]
                after[tuple(sorted((*places, (axis, place))))] = torch.cat(mine) if mine else lines[:0]
        held = after
    return {places: lines.tolist() for places, lines in held.items()}


def own_mesh_statistics(
    tensor: torch.Tensor,
    statistics: Callable[[int], tuple[list[int], list[int], list[int]]],
    rank: int,
    ranks: Sequence[int],
) -> Statistics:
    """Translates the engine's statistics, whose mesh may have more axes in front, to the parameter's own mesh.

    ``statistics`` returns whole shape, local shape and sharded dimension per axis, by rank. ``ranks`` are those of the
    parameter's own mesh, row-major.
    """
    shape, mine, dims = statistics(rank)
    if not isinstance(tensor, DTensor):
        return Statistics(tuple(shape), tuple(mine), ())
    axes = tensor.device_mesh.ndim
    own = [None if dim < 0 else dim for dim in dims[len(dims) - axes :]]
    whole = list(shape)
    for dim in {dim for dim in dims[: len(dims) - axes] if dim >= 0}:  # each slice has its own part of this dimension
        numbers = torch.tensor(ranks).reshape(tensor.device_mesh.mesh.shape)
        here = (numbers == rank).nonzero()[0].tolist()
        line = numbers[tuple(slice(None) if d == dim else at for d, at in zip(own, here))].flatten().tolist()
        whole[dim] = sum(statistics(other)[1][dim] for other in line)
    return Statistics(tuple(whole), tuple(mine), tuple(own))
