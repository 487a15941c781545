"""Imports checkpoints of other optimizers: torch.optim.Muon and AdamW, and Dion's Muon and NorMuon.

State is translated, and so are the hyperparameters of groups; docs/reference/migration-tables.md has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .entry_agreement import agree_on_entries
from .groups import MATRIX_ALGORITHMS, bare_name
from .state import whole

if TYPE_CHECKING:
    from .optimizer import NorMuon

Options = dict[str, Any]
#: The default of torch.optim.Muon: five equal iterations.
_JORDAN = [(3.4445, -4.7750, 2.0315)] * 5


@dataclass(frozen=True)
class _Theirs:
    """One parameter in a checkpoint: its name, group and state."""

    name: str | None
    group: Mapping[str, Any]
    entries: Mapping[str, Any]


def import_torch(optimizer: NorMuon, *state_dicts: Mapping[str, Any]) -> None:
    """Continues from the ``state_dict()`` of torch.optim.Muon, of AdamW, or of both, one after the other.

    Parameters are matched by name if all those of the checkpoint have names (optimizers made of named parameters, or
    torch.distributed.checkpoint), else by place: the groups of all ``state_dicts`` end to end are the optimizer's
    parameters in its order. Momentum may be whole tensors or DTensors in any layout.

    The values of their groups replace those of the optimizer's: learning rates, decay, momentum, betas, coefficients
    and scale. A group of NorMuon continues from the momentum, with mean squares of zero. All ranks together; load the
    model's weights first.

    Args:
        optimizer: a new ``NorMuon`` or ``Muon`` over the parameters of the checkpoints.
        state_dicts: what the other optimizers' ``state_dict()`` returned.

    Raises:
        ValueError: a parameter or a group has no counterpart. The text names it; nothing has been changed.
    """
    _load(optimizer, state_dicts, _torch_options, _torch_state)


def import_dion(optimizer: NorMuon, *state_dicts: Mapping[str, Any]) -> None:
    """Continues from the ``state_dict()`` of Dion's Muon or NorMuon; parameters are matched as in ``import_torch``.

    Dion keeps sums, ``M = mu M + G``: in a group with ``momentum_form="ema"`` (default) they are multiplied by 1 - mu.
    Its mean squares are those of rows, (..., rows, 1): the group must have ``normalize="rows"``. A group of NorMuon may
    also become one of Muon, or the reverse, with mean squares of zero. Dion's checkpoints have no coefficients: the
    optimizer keeps its own. All ranks together; load the model's weights first.

    Args:
        optimizer: a new ``NorMuon`` or ``Muon`` over the parameters of the checkpoints.
        state_dicts: what the other optimizers' ``state_dict()`` returned.

    Raises:
        ValueError: a parameter or a group has no counterpart. The text names it; nothing has been changed.
    """
    _load(optimizer, state_dicts, _dion_options, _dion_state)


def _match(optimizer: NorMuon, state_dicts: tuple[Mapping[str, Any], ...]) -> list[_Theirs]:
    """One per parameter of the optimizer, in its order."""
    theirs = [parameter for state_dict in state_dicts for parameter in _parameters(state_dict)]
    names = optimizer.names
    if theirs and all(parameter.name is not None for parameter in theirs):
        by_name = {parameter.name: parameter for parameter in theirs}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise ValueError(f"checkpoint: it has no parameter '{missing[0]}'; it has {', '.join(map(str, by_name))}")
        extra = [name for name in by_name if name not in names]
        if extra:
            raise ValueError(f"checkpoint: it has a parameter '{extra[0]}', the optimizer has {', '.join(names)}")
        return [by_name[name] for name in names]
    if len(theirs) != len(names):
        raise ValueError(f"checkpoint: it has {len(theirs)} parameters, the optimizer has {len(names)}")
    return theirs


def _parameters(state_dict: Mapping[str, Any]) -> list[_Theirs]:
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"checkpoint: no {key!r}; was it made by an optimizer?")
    out = []
    for group in state_dict["param_groups"]:
        keys = group["params"]
        names = group.get("param_names") or [key if isinstance(key, str) else None for key in keys]
        for key, name in zip(keys, names):
            out.append(_Theirs(None if name is None else bare_name(name), group, state_dict["state"].get(key, {})))
    return out


def _load(
    optimizer: NorMuon,
    state_dicts: tuple[Mapping[str, Any], ...],
    options: Callable[[Mapping[str, Any]], Options],
    state: Callable[[str, _Theirs, Mapping[str, Any]], Options],
) -> None:
    """Translates the checkpoints into a state_dict of this package, and loads it."""
    matched: list[_Theirs] = []
    groups: list[Options] = []
    states: Options = {}
    with optimizer.ranks.together("import of a state"):
        matched = _match(optimizer, state_dicts)
        groups = _groups(optimizer, matched, options)
    entries = {name: theirs.entries for name, theirs in zip(optimizer.names, matched)}
    agree_on_entries(optimizer.ranks, entries)
    with optimizer.ranks.together("entries of an imported state"):  # here ranks gather DTensors
        for group in groups:
            for i in group["params"]:
                states[i] = state(optimizer.names[i], matched[i], group)
    with optimizer._use.call("import of a state"):
        optimizer._load({"state": states, "param_groups": groups}, warn=False)


def _groups(
    optimizer: NorMuon, matched: list[_Theirs], options: Callable[[Mapping[str, Any]], Options]
) -> list[Options]:
    groups, first = [], 0
    for group in optimizer.param_groups:
        members = range(first, first + len(group["params"]))
        first = members.stop
        given = [options(matched[i].group) for i in members]
        ours = {key: value for key, value in group.items() if key != "params"}
        for i, theirs in zip(members, given):
            name = optimizer.names[i]
            if theirs != given[0]:
                raise ValueError(
                    f"parameter '{name}': the checkpoint has other options for it than for its group's first"
                )
            _check_algorithm(name, theirs["algorithm"], group["algorithm"])
            ours |= {**theirs, "algorithm": group["algorithm"]}
        groups.append({**ours, "params": list(members)})
    return groups


def _check_algorithm(name: str, theirs: str, ours: str) -> None:
    if theirs != ours and not (theirs in MATRIX_ALGORITHMS and ours in MATRIX_ALGORITHMS):
        raise ValueError(
            f"parameter '{name}': the checkpoint is of {theirs}, its group is of {ours}; {_remedy(theirs, ours)}"
        )


def _remedy(theirs: str, ours: str) -> str:
    keep = f"keep the parameter in a group with algorithm={theirs!r}"
    if theirs == "adamw" and ours in MATRIX_ALGORITHMS:
        return f"AdamW's state of a matrix cannot become momentum: load the weights and start fresh, or {keep}"
    return f"one's state cannot become the other's: load the weights and start fresh, or {keep}"


def _rates(group: Mapping[str, Any]) -> Options:
    """The values that schedulers change, as floats."""
    keys = ("lr", "initial_lr", "weight_decay")
    return {key: float(group[key]) for key in keys if key in group}


def _counterpart(group: Mapping[str, Any], key: str, ours: Mapping[Any, str]) -> str:
    if group[key] not in ours:
        raise ValueError(f"checkpoint: {key} {group[key]!r}: expected one of {', '.join(map(repr, ours))}")
    return ours[group[key]]


# torch.optim


def _torch_options(group: Mapping[str, Any]) -> Options:
    if "ns_coefficients" in group:
        steps = [tuple(group["ns_coefficients"])] * int(group["ns_steps"])
        return {
            "algorithm": "muon",
            **_rates(group),
            "momentum": float(group["momentum"]),
            "momentum_form": "ema",
            "nesterov": bool(group["nesterov"]),
            "coefficients": "jordan" if steps == _JORDAN else steps,
            "scale": _counterpart(
                group, "adjust_lr_fn", {None: "jordan", "original": "jordan", "match_rms_adamw": "rms"}
            ),
        }
    if "betas" in group and "amsgrad" in group:
        for key in ("amsgrad", "maximize"):
            if group.get(key):
                raise ValueError(f"checkpoint: AdamW with {key}=True has no counterpart")
        betas = tuple(float(beta) for beta in group["betas"])
        return {"algorithm": "adamw", **_rates(group), "betas": betas, "eps": float(group["eps"])}
    raise ValueError(f"checkpoint: neither of torch.optim.Muon nor of AdamW: a group has {', '.join(sorted(group))}")


def _torch_state(name: str, theirs: _Theirs, ours: Mapping[str, Any]) -> Options:
    del name, ours
    names = {"momentum_buffer": "momentum", "exp_avg": "first", "exp_avg_sq": "second", "step": "updates"}
    return {
        names.get(key, key): _number(value) if key == "step" else whole(value).float()
        for key, value in theirs.entries.items()
    }


def _number(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).to("cpu", torch.int64).reshape(())


# Dion


def _dion_options(group: Mapping[str, Any]) -> Options:
    if "cautious_wd" not in group:
        raise ValueError(f"checkpoint: not of Dion's Muon or NorMuon: a group has {', '.join(sorted(group))}")
    algorithm = group["algorithm"]
    out = {"algorithm": algorithm, **_rates(group), "decay": "cautious" if group["cautious_wd"] else "plain"}
    if algorithm in MATRIX_ALGORITHMS:
        out["momentum"] = float(group["mu"])
        out["nesterov"] = bool(group["nesterov"])
        out["scale"] = _counterpart(group, "adjust_lr", {None: "none", "spectral_norm": "spectral", "rms_norm": "rms"})
        beta2 = group.get("muon_beta2", group["beta2"])
    else:
        out["eps"] = float(group["epsilon"])
        beta2 = group["beta2"]
    out["betas"] = (float(group["beta1"]), float(beta2))
    return out


def _dion_state(name: str, theirs: _Theirs, ours: Mapping[str, Any]) -> Options:
    entries, group = theirs.entries, theirs.group
    if not entries:
        return {}
    momentum = whole(entries["momentum"]).float()
    count = _number(entries.get("step_dev", group["step"]))
    out = {"updates": count, "steps": _number(group["step"])}
    if ours["algorithm"] not in MATRIX_ALGORITHMS:
        out["first"] = momentum
        if "variance" in entries:
            out["second"] = whole(entries["variance"]).float()
        return out
    out["momentum"] = momentum * (1 - float(group["mu"])) if ours["momentum_form"] == "ema" else momentum
    if "variance_neuron" in entries and ours["algorithm"] == "normuon":
        out["variance"] = _dion_variance(name, theirs, ours, momentum.shape)
    return out


def _dion_variance(name: str, theirs: _Theirs, ours: Mapping[str, Any], shape: torch.Size) -> torch.Tensor:
    """Converts mean squares of (..., rows, 1) to those of the rows of all blocks, end to end."""
    if ours["flatten"] and len(shape) > 2:
        raise ValueError(
            f"parameter '{name}': with flatten Dion keeps mean squares along the last of {tuple(shape)}, which has no "
            "counterpart; take 'variance_neuron' out of its state to start from zero"
        )
    if not _along_rows(shape, ours):
        raise ValueError(
            f"parameter '{name}': Dion keeps the mean squares of rows, this group of columns; give it normalize='rows'"
        )
    variance = whole(theirs.entries["variance_neuron"]).float().squeeze(-1)
    sizes = list(theirs.group.get("split_sizes") or ())
    if sizes != list(ours["split_rows"] or ()) or (theirs.group.get("num_heads") or 1) != (ours["heads"] or 1):
        raise ValueError(f"parameter '{name}': the checkpoint has other blocks of rows than split_rows or heads here")
    if sizes:
        # Dion scales each block before it takes the squares, so that one rate serves all blocks.
        scales = [_scale(theirs.group["adjust_lr"], rows, shape[-1]) for rows in sizes]
        full = _scale(theirs.group["adjust_lr"], shape[-2], shape[-1])
        factors = torch.tensor([(scale / full) ** 2 for scale in scales])
        variance = variance / factors.repeat_interleave(torch.tensor(sizes))
    return variance.flatten()


def _along_rows(shape: torch.Size, ours: Mapping[str, Any]) -> bool:
    """True if NorMuon normalizes rows in every block of this group."""
    if not isinstance(ours["normalize"], str):
        return all(side == "rows" for side in ours["normalize"])
    if ours["normalize"] != "longer" or ours["view"]:
        return bool(ours["normalize"] == "rows")
    rows = [shape[-2] // ours["heads"]] if ours["heads"] else ours["split_rows"] or [shape[-2]]
    columns = ours["split_columns"] or [shape[-1]]
    return bool(min(rows) >= max(columns))


def _scale(adjust: str | None, rows: int, columns: int) -> float:
    if adjust is None:
        return 1.0
    return math.sqrt(rows / columns) if adjust == "spectral_norm" else 0.2 * math.sqrt(max(rows, columns))
