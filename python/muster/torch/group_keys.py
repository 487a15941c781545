"""Keys of param groups: those of this package, those that may change, and those that look like a mistake."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from .groups import DEFAULTS

#: Read when a plan is made. A group keeps them, whatever is loaded.
FIXED = ("algorithm", *list(DEFAULTS)[list(DEFAULTS).index("lr_mul") :])
#: Keys that are taken out of a group when it is added.
_DECLARED = {"mesh", "placements", "rank_local"}
#: Further keys of this package.
_MORE = ("params", "param_names", *sorted(_DECLARED))
#: Keys that torch and frameworks put into groups: never taken for a misspelled key of this package.
_FOREIGN = {
    "name", "names", "fused", "foreach", "capturable", "differentiable", "initial_lr", "max_lr", "min_lr", "base_lr",
    "swa_lr", "max_momentum", "base_momentum", "initial_momentum", "decoupled_weight_decay", "amsgrad", "dampening",
    "lr_decay", "lr_scale",
}  # fmt: skip

#: Keys of torch.optim.Muon, Dion and others that change the update, and what to give here.
_TRANSLATED = {
    "ns_steps": "coefficients=[(a, b, c)] * ns_steps",
    "ns_coefficients": "coefficients=[(a, b, c)] * ns_steps",
    "adjust_lr_fn": 'scale="jordan" for "original", scale="rms" for "match_rms_adamw"',
    "mu": "momentum=",
    "muon_beta2": "the second of betas=",
    "epsilon": "eps=",
    "cautious_wd": 'decay="cautious"',
    "adjust_lr": 'scale="spectral", "rms" or "none"',
    "num_heads": "heads=",
    "split_sizes": "split_rows=",
    "use_polar_express": 'coefficients="polar_express" or "quintic"',
    "distributed_mesh": "no mesh: layouts are read from the tensors",
    "use_muon": 'algorithm="adamw" in the groups that Muon is not for',
    "algo": "algorithm=",
    "adamw_lr": 'lr= in a group with algorithm="adamw", or param_groups(model, adamw_lr=...)',
    "adamw_betas": 'betas= in a group with algorithm="adamw", or param_groups(model, adamw_betas=...)',
    "adamw_weight_decay": 'weight_decay= in a group with algorithm="adamw", or param_groups(model, ...)',
    "learning_rate": "lr=",
    "wd": "weight_decay=",
    "rule": "muster.torch.MatrixOptimizer(params, rule=...)",
}


def check_keys(group: Mapping[str, Any], options: Iterable[str] = (), where: str = "param group") -> None:
    """Raises ValueError for a key that looks misspelled. Unknown keys pass through unchanged.

    ``options`` are arguments of the constructor, which have no effect in a group.
    ``where`` begins the message.
    """
    ours = {*DEFAULTS, *_MORE}
    for key in group:
        if key in ours or key in _FOREIGN or not isinstance(key, str):
            continue
        if key in options:
            raise ValueError(f"{where}: {key!r} belongs to the optimizer as a whole: give it to the constructor")
        if key in _TRANSLATED:
            raise ValueError(f"{where}: {key!r} is a key of another optimizer; give {_TRANSLATED[key]}")
        near = _nearest(key, ours)
        if near is not None:
            raise ValueError(f"{where}: unknown key {key!r}; did you mean {near!r}?")


def check_arguments(given: Mapping[str, Any], options: Iterable[str]) -> None:
    """The same for keyword arguments of the constructor; here unknown names are errors, but for those of frameworks."""
    for key in given:
        if key in _DECLARED:
            raise ValueError(f"{key} is a key of a param group, not an argument: it says where these parameters are")
    check_keys(given)
    for key in given:
        if key in DEFAULTS or key in _FOREIGN:
            continue
        near = _nearest(key, {*DEFAULTS, *options})
        raise ValueError(f"unknown argument {key!r}{'' if near is None else f'; did you mean {near!r}?'}")


def _nearest(key: str, known: Iterable[str]) -> str | None:
    """The nearest word at an edit distance of at most 2, or 1 for words of up to three letters."""
    distances = {word: _distance(key, word) for word in sorted(known) if abs(len(key) - len(word)) <= 2}
    near = [word for word, distance in distances.items() if distance <= (2 if min(len(key), len(word)) > 3 else 1)]
    return min(near, key=distances.__getitem__, default=None)


def _distance(a: str, b: str) -> int:
    """The edit distance: the least number of letters to insert, delete or replace."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        above, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != other)))
    return row[-1]


_fixed = itemgetter(*FIXED)
_changing = itemgetter(
    "lr", "weight_decay", "decay", "every", "momentum", "momentum_form", "nesterov", "scale", "eps", "coefficients",
    "maximize", "betas",
)  # fmt: skip
_PLAIN = {float, int, bool, str}


def plain_values(group: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The values that a step reads of a group, to compare in the next. None: a list or tensor among them may change."""
    *values, betas = _changing(group)
    if type(betas) is not tuple:
        return None
    values += betas
    return tuple(values) if _PLAIN.issuperset(map(type, values)) else None


def fixed_values(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that a plan is made for."""
    return copy.deepcopy(_fixed(group))


def check_fixed(number: int, group: Mapping[str, Any], planned: tuple[Any, ...]) -> None:
    """Raises ValueError if a key that is read only when a plan is made has changed since."""
    later = _DECLARED & group.keys()
    if _fixed(group) == planned and not later:
        return
    for key, was in zip(FIXED, planned):
        if group[key] != was:
            raise ValueError(
                f"param group {number}: {key} is fixed when the optimizer is first used: it was {was!r}, it is"
                f" {group[key]!r}; put the parameters into another group, or make another optimizer"
            )
    key = min(later)
    raise ValueError(f"param group {number}: {key} is read when the group is added; it was set to {group[key]!r} later")
