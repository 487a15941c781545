"""What the engine carries from step to step, as torch's state_dict has it: by parameter, under short names.

Momentum and moments of a DTensor are DTensors laid out like it, so that torch.distributed.checkpoint reshards them;
the rest (NorMuon's mean squares, counts) is small and whole on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .. import _muster

State = dict[str, torch.Tensor]
#: Of the parameter itself rather than of its optimizer: the model's state_dict has it.
_WEIGHT = "weight"

_TYPES = {
    _muster.StateType.f32: torch.float32,
    _muster.StateType.bf16: torch.bfloat16,
    _muster.StateType.u16: torch.uint16,
    _muster.StateType.i64: torch.int64,
}
_STATE_TYPES = {dtype: kind for kind, dtype in _TYPES.items()}


def split_name(name: str) -> tuple[str, str]:
    """``"blocks.0.w:momentum"`` to parameter and entry; of the optimizer as a whole the parameter is ""."""
    parameter, _, entry = name.rpartition(":")
    return parameter, entry


def _spread(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Lays it out like the parameter, where both have the same elements and torch's own rule says where they are."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    if any(p.is_shard() and type(p) is not Shard for p in parameter.placements):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def export_state(engine: _muster.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, State]:
    """By parameter name. What is of the whole optimizer, two numbers, is in each. All ranks together."""
    out: dict[str, State] = {name: {} for name in parameters}
    for name, _, _ in engine.state():
        parameter, entry = split_name(name)
        if entry == _WEIGHT:
            continue
        kind, shape, data = engine.export_state(name)
        value = torch.frombuffer(bytearray(data), dtype=_TYPES[kind]).reshape(shape)
        if parameter:
            out[parameter][entry] = _spread(value, parameters[parameter])
        else:
            for entries in out.values():
                entries[entry] = value.clone()
    return out


def import_state(engine: _muster.Optimizer, given: Mapping[str, Mapping[str, Any]]) -> None:
    """What ``export_state`` made, in any layout. Entries that are missing start from zero. All ranks together."""
    expected = {name: (kind, shape) for name, kind, shape in engine.state()}
    values: dict[str, Any] = {}
    for parameter, entries in given.items():
        for entry, value in entries.items():
            values[f":{entry}" if f":{entry}" in expected else f"{parameter}:{entry}"] = value
    tensors = []
    for name, (kind, shape) in expected.items():
        # The weights are the model's, and what completes them stays as it is.
        if name not in values and split_name(name)[1] not in (_WEIGHT, "master", "mantissa"):
            tensors.append((name, kind, shape, bytes(_TYPES[kind].itemsize * math.prod(shape))))
    # The engine refuses, on all ranks, what does not fit: this rank alone must not leave the others waiting.
    for name, value in values.items():
        tensor = whole(value)
        kind = _STATE_TYPES.get(tensor.dtype, _muster.StateType.u16)
        tensors.append((name, kind, list(tensor.shape), to_bytes(tensor)))
    engine.import_state(tensors)


def whole(value: Any) -> torch.Tensor:
    """All of it, on the CPU. Of a DTensor, all ranks together."""
    return torch.as_tensor(value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Its elements, row-major."""
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def check_overlap(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError naming two parameters that share memory: both would update it."""
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name)
        for name, t in zip(names, tensors)
        if t.numel()
    )
    for (_, end, first), (begin, _, second) in zip(spans, spans[1:]):
        if begin < end:
            raise ValueError(f"parameters '{first}' and '{second}' share memory; give one of them")
