"""State that only the engine keeps: each element of replicas once, on one of the ranks. All ranks gather it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _muster
from .state_tensors import State

#: The weights: they belong to the model's state_dict.
_WEIGHT = "weight"
#: Entries that opt.state has even if the engine keeps the others.
_COUNTERS = ("updates", "steps", "seed")

_TYPES = {
    _muster.StateType.f32: torch.float32,
    _muster.StateType.bf16: torch.bfloat16,
    _muster.StateType.u16: torch.uint16,
    _muster.StateType.i64: torch.int64,
}


def split_name(name: str) -> tuple[str, str]:
    """``"blocks.0.w:momentum"`` as parameter and entry; the parameter is "" for entries of the whole optimizer."""
    parameter, _, entry = name.rpartition(":")
    return parameter, entry


def empty_like_engine(engine: _muster.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, State]:
    """Meta tensors with the shapes and dtypes of the engine's state of these parameters."""
    return {
        name: {entry: torch.empty(shape, dtype=_TYPES[kind], device="meta") for entry, (kind, shape) in entries.items()}
        for name, entries in engine_entries(engine, parameters).items()
    }


def engine_entries(
    engine: _muster.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, tuple[_muster.StateType, list[int]]]]:
    """Type and whole shape of the engine's state of these parameters, by name and entry."""
    out: dict[str, dict[str, tuple[_muster.StateType, list[int]]]] = {name: {} for name in parameters}
    for name, kind, shape in engine.state():
        parameter, entry = split_name(name)
        if parameter in out and entry != _WEIGHT and entry not in _COUNTERS:
            out[parameter][entry] = (kind, shape)
    return out


def export_state(engine: _muster.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, State]:
    """Whole tensors on the CPU, by parameter name. All ranks together."""
    out: dict[str, State] = {name: {} for name in parameters}
    for parameter, entries in engine_entries(engine, parameters).items():
        for entry in entries:
            kind, shape, data = engine.export_state(f"{parameter}:{entry}")
            dtype = _TYPES[kind]
            value = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
            out[parameter][entry] = value.reshape(shape)
    return out


def import_state(
    engine: _muster.Optimizer, given: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, torch.Tensor]
) -> None:
    """Gives the engine entries in any layout; missing ones start from zero. All ranks together, with equal entries."""
    tensors = []
    for parameter, entries in engine_entries(engine, parameters).items():
        for entry, (kind, shape) in entries.items():
            value, name = given.get(parameter, {}).get(entry), f"{parameter}:{entry}"
            if value is not None:
                tensors.append((name, kind, shape, to_bytes(whole(value).to(_TYPES[kind]).reshape(shape))))
            elif entry not in ("master", "mantissa"):  # these complete the weights and stay as they are
                tensors.append((name, kind, shape, bytes(_TYPES[kind].itemsize * math.prod(shape))))
    if tensors:
        engine.import_state(tensors)


def whole(value: Any) -> torch.Tensor:
    """The whole tensor on the CPU. All ranks together for a DTensor."""
    return torch.as_tensor(value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Its elements, row-major."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)  # Tensor.numpy() needs NumPy, which torch does not bring
