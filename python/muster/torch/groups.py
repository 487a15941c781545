"""Param groups: their keys and defaults, and their translation to groups and parameters of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from .. import _muster
from .errors import MAX_INT64, whole_number, whole_numbers
from .wrappers import trainer_hint

__all__ = ["DEFAULTS", "GroupOptions", "MoreOptions"]


Side = Literal["longer", "rows", "columns"]


class MoreOptions(TypedDict, total=False):
    """Keys of a param group that the constructor also takes, as defaults of all groups.

    ``algorithm`` and the keys from ``lr_mul`` on are read when the plan is made; changing one later is a ValueError. The
    others are read in every step.
    """

    algorithm: Literal["normuon", "muon", "adamw", "lion", "rule"]
    """How the parameters are updated. Default: the optimizer's class. "rule": only in MatrixOptimizer."""
    decay: Literal["plain", "cautious"]
    """Cautious: weight decay only where weight and update do not have opposite signs. Default plain."""
    every: int
    """With N, updated only in steps N, 2N, 3N, ... Default 1."""
    momentum_form: Literal["ema", "sum"]
    """An exponential average of gradients, or their decayed sum. Default ema."""
    nesterov: bool
    """The update looks one step ahead of the momentum. Default True."""
    coefficients: str | Sequence[Sequence[float]]
    """Polynomials of Newton-Schulz: a name, or one (a, b, c) per iteration. Default polar_express."""
    scale: Literal["none", "spectral", "jordan", "rms", "fan"]
    """The factor of a matrix's step, from its shape. Default jordan: sqrt(max(1, output / input))."""
    eps: float
    """Added to the root of the second moment, by AdamW and NorMuon. Default 1e-8."""
    maximize: bool
    """Steps go along the gradient. Default False."""
    lr_mul: float
    """Times lr, for this group. Default 1."""
    normalize: Side | Sequence[Side]
    """The side along which NorMuon keeps mean squares, or one side per block. Default longer; a tie: rows."""
    heads: int | None
    """The number of equal blocks of rows, each orthogonalized alone."""
    split_rows: Sequence[int] | None
    """Sizes of blocks of rows, each orthogonalized alone: [q, k, v]."""
    split_columns: Sequence[int] | None
    """Sizes of blocks of columns, each orthogonalized alone."""
    view: Sequence[int] | None
    """The storage is read row-major as this shape: (batch..., rows, columns)."""
    flatten: bool
    """For convolutions: dimension 0 against all others. Default False."""
    output_dim: Literal[0, 1]
    """1 for matrices that are stored transposed, (input, output). Default 0."""
    scale_shape: Literal["block", "parameter"]
    """The shape that gives the scale of the step: each block's, or the whole parameter's. Default block."""


class GroupOptions(MoreOptions, total=False):
    """All keys of a param group but ``params``."""

    lr: float
    """Learning rate. Default 0.02."""
    weight_decay: float
    """Decoupled, per step, times lr and lr_mul. Default 0."""
    momentum: float
    """Decay rate of the momentum. Default 0.95; in AdamW and Lion groups the same value as betas[0]."""
    betas: tuple[float, float]
    """Decay rates of AdamW's and Lion's moments; the second is NorMuon's too. Default (0.9, 0.95)."""
    mesh: Any
    """With ``placements``: plain tensors are shards of equal size on this DeviceMesh. Read when the group is added."""
    placements: Sequence[Any]
    """One per axis of ``mesh``: Shard or Replicate. Read when the group is added."""
    rank_local: Any
    """A DeviceMesh of one dimension: each of its ranks has its own part of dimension 0. Read when the group is added."""


DEFAULTS: dict[str, Any] = {
    "algorithm": "normuon",  # or "muon", "adamw", "lion"
    "lr": 0.02,
    "weight_decay": 0.0,  # per step, times lr and lr_mul
    "decay": "plain",  # or "cautious": only where weight and update do not have opposite signs
    "every": 1,  # N: updated only in steps N, 2N, 3N, ...
    "momentum": 0.95,  # AdamW and Lion: the same value as betas[0]
    "momentum_form": "ema",  # or "sum"
    "nesterov": True,
    "coefficients": "polar_express",  # a name, or [(a, b, c), ...], one per step
    "scale": "jordan",  # or "none", "spectral", "rms", "fan"
    "betas": (0.9, 0.95),  # AdamW and Lion; the second is NorMuon's too
    "eps": 1e-8,
    "maximize": False,  # True: step along the gradient
    # The following keys, and the algorithm, are fixed when the optimizer is first used; the others are read every step.
    "lr_mul": 1.0,
    "normalize": "longer",  # the side along which NorMuon keeps mean squares; or "rows", "columns"; or one per block
    "heads": None,  # the number of equal blocks of rows
    "split_rows": None,  # sizes of blocks of rows, each orthogonalized alone: [q, k, v]
    "split_columns": None,
    "view": None,  # read the storage row-major as this shape: (batch..., rows, columns)
    "flatten": False,  # convolutions: dim 0 against all others
    "output_dim": 0,  # 1: stored transposed, (input, output)
    "scale_shape": "block",  # the shape that gives the scale of the step; or "parameter"
}
"""Every key of a param group but ``params``, ``mesh``, ``placements`` and ``rank_local``, with its default.

``GroupOptions`` has the meanings.
"""

MATRIX_ALGORITHMS = ("muon", "normuon", "rule")


def enum_value(kind: Any, key: str, value: Any) -> Any:
    """The member of that name. Raises ValueError that names the key and the value."""
    member = getattr(kind, str(value), None)
    if isinstance(member, kind):
        return member
    known = ", ".join(name for name in dir(kind) if isinstance(getattr(kind, name), kind))
    raise ValueError(f"{key} {value!r}: expected one of {known}")


def bare_name(name: str) -> str:
    """The name without the prefixes of wrappers (torch.compile, activation checkpointing, DDP)."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def coefficient_steps(chosen: Sequence[Sequence[float]]) -> list[list[float]]:
    """Polynomials as lists of (a, b, c). Raises ValueError that names the value."""
    try:
        return [[float(a), float(b), float(c)] for a, b, c in chosen]
    except (TypeError, ValueError):
        raise ValueError(f"coefficients {chosen!r}: expected a name, or one (a, b, c) per step in a list") from None


def coefficient_set(chosen: str | Sequence[Sequence[float]]) -> _muster.Coefficients:
    """The polynomials of that name, or these. Raises ValueError that names the value."""
    if isinstance(chosen, str):
        return _muster.coefficients(chosen)
    return _muster.Coefficients("custom", coefficient_steps(chosen))


def fill_group(out: _muster.Group, group: Mapping[str, Any]) -> None:
    """Copies the values that may change from step to step."""
    out.lr = float(group["lr"])
    out.weight_decay = float(group["weight_decay"])
    out.decay = enum_value(_muster.Decay, "decay", group["decay"])
    out.every = whole_number("every", group["every"], 1, MAX_INT64)
    out.momentum = float(group["momentum"])
    out.momentum_form = enum_value(_muster.MomentumForm, "momentum_form", group["momentum_form"])
    out.nesterov = bool(group["nesterov"])
    out.scale = enum_value(_muster.StepScale, "scale", group["scale"])
    out.beta1, out.beta2 = (float(beta) for beta in group["betas"])
    out.eps = float(group["eps"])
    chosen = group["coefficients"]
    if not isinstance(chosen, str) or out.coefficients.name != chosen:
        out.coefficients = coefficient_set(chosen)


def _rows(name: str, shape: tuple[int, ...], group: Mapping[str, Any]) -> list[int]:
    heads = group["heads"]
    if heads is None:
        return whole_numbers(f"parameter '{name}': split_rows", group["split_rows"] or (), 0, MAX_INT64)
    if group["split_rows"]:
        raise ValueError(f"parameter '{name}': heads and split_rows both cut its rows")
    read = group["view"] or shape
    rows = read[0] if group["flatten"] else read[-2]
    if heads < 1 or rows % heads:
        raise ValueError(f"parameter '{name}': {rows} rows in {heads} heads of equal size; use split_rows for others")
    return [rows // heads] * heads


def _blocks(
    name: str, sizes: Sequence[int], sides: Sequence[_muster.NormAxis]
) -> list[tuple[int, _muster.NormAxis | None]]:
    """Sizes of blocks, each with its side. Without sides the blocks have that of the parameter."""
    if sides and len(sides) != len(sizes):
        raise ValueError(f"parameter '{name}': normalize has {len(sides)} sides for {len(sizes)} blocks")
    return [(size, sides[i] if sides else None) for i, size in enumerate(sizes)]


def _sides(normalize: Any) -> list[_muster.NormAxis]:
    """Of a list; empty if ``normalize`` is one side for all blocks."""
    if isinstance(normalize, str) or not isinstance(normalize, Sequence):
        return []
    return [enum_value(_muster.NormAxis, "normalize", side) for side in normalize]


def _matrices(name: str, group: Mapping[str, Any], rows: Sequence[int], columns: Sequence[int]) -> _muster.MatrixSpec:
    sides = _sides(group["normalize"])
    if sides and bool(rows) == bool(columns):
        cut = "rows and columns are both cut into blocks" if rows else "neither heads, split_rows nor split_columns cut"
        raise ValueError(f"parameter '{name}': normalize {group['normalize']!r}: one side per block, but {cut}")
    return _muster.MatrixSpec(
        whole_numbers(f"parameter '{name}': view", group["view"] or (), 0, MAX_INT64),
        bool(group["flatten"]),
        _blocks(name, rows, sides if rows else []),
        _blocks(name, columns, [] if rows else sides),
    )


def check_shape(name: str, shape: tuple[int, ...], group: Mapping[str, Any]) -> None:
    """Raises ValueError that names the parameter if a matrix algorithm cannot tell rows from columns."""
    if group["algorithm"] not in MATRIX_ALGORITHMS:
        return
    if len(shape) < 2 and not group["view"]:
        raise ValueError(
            f"parameter '{name}': shape {tuple(shape)} has no matrix for {group['algorithm']}; "
            f"put it into a group with algorithm='adamw', as muster.torch.param_groups(model) does{trainer_hint()}"
        )
    if len(shape) > 3 and not group["view"] and not group["flatten"]:
        raise ValueError(
            f"parameter '{name}': shape {tuple(shape)}: a convolution is a matrix with flatten=True (dimension 0"
            " against all others); give a view=(..., rows, columns) if it is a stack of matrices"
        )
    if group["view"] and len(group["view"]) < 2:
        raise ValueError(f"parameter '{name}': view {tuple(group['view'])}: expected rows and columns at least")


def make_parameter(
    name: str, shape: tuple[int, ...], dtype: _muster.Dtype, group: Mapping[str, Any]
) -> _muster.Parameter:
    """A parameter of the problem, of the whole ``shape``, without its layout. Raises ValueError that names it."""
    out = _muster.Parameter()
    out.name, out.shape, out.dtype, out.grad_dtype = name, list(shape), dtype, dtype
    try:
        out.algorithm = enum_value(_muster.Algorithm, "algorithm", group["algorithm"])
        if not _sides(group["normalize"]):
            out.norm_axis = enum_value(_muster.NormAxis, "normalize", group["normalize"])
        out.scale_shape = enum_value(_muster.ScaleShape, "scale_shape", group["scale_shape"])
    except ValueError as error:
        raise ValueError(f"parameter '{name}': {error}") from None
    out.output_dim = whole_number(f"parameter '{name}': output_dim", group["output_dim"], 0, 1)
    out.multiplier = float(group["lr_mul"])
    if not (math.isfinite(out.multiplier) and out.multiplier >= 0):
        raise ValueError(f"parameter '{name}': lr_mul {out.multiplier}: expected a number of at least 0")
    if group["algorithm"] in MATRIX_ALGORITHMS:
        check_shape(name, shape, group)
        columns = whole_numbers(f"parameter '{name}': split_columns", group["split_columns"] or (), 0, MAX_INT64)
        out.matrices = _matrices(name, group, _rows(name, shape, group), columns)
    return out
