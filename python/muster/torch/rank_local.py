"""Declarations in param groups of where tensors are, and errors that ask for a declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .. import _muster


@dataclass(frozen=True)
class Declared:
    """The keys of a param group that say where its tensors are.

    ``mesh`` and ``placements`` are those of a DTensor, for plain tensors with shards of equal size.
    ``rank_local`` is a one-dimensional mesh: each of its ranks has its own part of dimension 0, of any size, and the
    whole parameter is these parts in the order of the mesh.
    """

    mesh: Any = None
    placements: tuple[Any, ...] = ()
    rank_local: Any = None


def take_declaration(group: dict[str, Any]) -> Declared | None:
    """Removes the keys of Declared from a param group and returns them; None if there are none."""
    mesh, placements, rank_local = (group.pop(key, None) for key in ("mesh", "placements", "rank_local"))
    if (mesh is None) != (placements is None):
        raise ValueError("param group: mesh and placements belong together")
    if mesh is None and rank_local is None:
        return None
    return Declared(mesh, tuple(placements or ()), rank_local)


@dataclass(frozen=True)
class Part:
    """The part of a rank-local parameter that a rank holds, by its coordinate on the declared axis."""

    axis: str
    size: int
    coordinate: int

    def __str__(self) -> str:
        return f"axis '{self.axis}' of {self.size} ranks"


def group_ranks(name: str, mesh: Any, group: dist.ProcessGroup | None, what: str = "its mesh") -> list[int]:
    """The ranks of a mesh as ranks of the process group, row-major. Raises ValueError that names the parameter."""
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"parameter '{name}': {what} is a {type(mesh).__name__}, expected a DeviceMesh")
    if group is None:
        raise ValueError(f"parameter '{name}': {what} is a DeviceMesh, but there is no process group")
    ranks: list[int] = mesh.mesh.flatten().tolist()
    try:
        return [dist.get_group_rank(group, rank) for rank in ranks]
    except (ValueError, RuntimeError):
        members = dist.get_process_group_ranks(group)
        raise ValueError(
            f"parameter '{name}': {what} has ranks {ranks}, the process group has {members}: it must have all of them"
        ) from None


def read_part(name: str, mesh: Any, group: dist.ProcessGroup | None, slice_ranks: tuple[int, ...]) -> Part:
    """This rank's part, which the ranks of ``slice_ranks`` share. Raises ValueError that names the parameter."""
    shown = " ".join(repr(mesh).split())  # on one line
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        raise ValueError(
            f"parameter '{name}': rank_local {shown}: expected a DeviceMesh of one dimension, like mesh[\"ep\"]"
        )
    ranks = group_ranks(name, mesh, group, f"rank_local {shown}")
    me = dist.get_rank(group)
    if me not in ranks:
        raise ValueError(f"parameter '{name}': rank {me} is not in rank_local {shown}, which has ranks {ranks}")
    if set(ranks) & set(slice_ranks) != {me}:
        raise ValueError(
            f"parameter '{name}': its own mesh has ranks {list(slice_ranks)}, rank_local {shown} has {ranks}: "
            f"only rank {me} may be in both"
        )
    return Part((mesh.mesh_dim_names or ("rank_local",))[0], len(ranks), ranks.index(me))


def other_axes(tensor: torch.Tensor) -> tuple[str, ...]:
    """Names of the root mesh's axes that a DTensor on a slice does not have; () if they are unknown."""
    mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
    root = getattr(mesh, "_get_root_mesh", lambda: None)()  # private in torch
    if mesh is None or root is None or not root.mesh_dim_names or root.get_coordinate() is None:
        return ()
    own = set(mesh.mesh.flatten().tolist())
    names = []
    for axis, name in enumerate(root.mesh_dim_names):
        index: list[Any] = list(root.get_coordinate())
        index[axis] = slice(None)
        line = root.mesh[tuple(index)].tolist()
        if len(line) > 1 and len(own.intersection(line)) <= 1:
            names.append(name)
    return tuple(names)


def how_to_declare(name: str, axes: tuple[str, ...]) -> str:
    """The declaration of a rank-local parameter, as a user writes it."""
    meshes = [f'mesh["{axis}"]' for axis in axes or ("ep",)]
    text = f'{{"params": [("{name}", ...)], "rank_local": {meshes[0]}}}'
    if len(meshes) > 1:
        text += f" (or {', '.join(meshes[1:])})"
    return (
        f"if each rank has its own part of dimension 0 (rank-local experts), declare it in its param group: {text}, "
        "where the one-dimensional DeviceMesh has the ranks whose parts make the whole"
    )


#: What to do if parameters that differ between ranks are replicas.
_IF_REPLICAS = {
    _muster.ErrorCode.replica_weights_differ: "start them from the same weights (DistributedDataParallel does)",
    _muster.ErrorCode.replica_gradients_differ: (
        "average their gradients (DistributedDataParallel does), or give grad_sync=True"
    ),
}


def with_remedies(refused: ValueError, parameters: dict[str, torch.Tensor]) -> str:
    """The text of an error; if replicas differ, with the remedies."""
    if not isinstance(refused, _muster.InvalidArgument) or refused.code not in _IF_REPLICAS:
        return str(refused)
    name = refused.parameter
    axes = other_axes(parameters[name]) if name in parameters else ()
    otherwise = f"if they are replicas, {_IF_REPLICAS[refused.code]}"
    stage = "if they belong to another pipeline stage, give process_group=..."
    return f"{refused}. Remedies: {how_to_declare(name, axes)}; {otherwise}; {stage}"
