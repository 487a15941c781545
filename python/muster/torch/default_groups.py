"""Default param groups for a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any, NoReturn, Union

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from .group_keys import check_keys
from .groups import DEFAULTS, MATRIX_ALGORITHMS, bare_name
from .module_roles import Roles
from .module_rules import Decision, Site, is_a
from .options import NAMES
from .wrappers import FSDP1

#: One or more patterns, or for each pattern keys of its param group.
Patterns = Union[str, Sequence[str], Mapping[str, Mapping[str, Any]]]
#: Keys that say how a parameter is read as matrices: one of them replaces what the class says.
_LAYOUT = {"view", "flatten", "heads", "split_rows", "split_columns", "output_dim", "normalize"}
#: Names that torch.compile and activation checkpointing give to the module that they wrap.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")


def param_groups(
    model: nn.Module,
    *,
    include: Patterns = (),
    exclude: str | Sequence[str] = (),
    adamw_lr: float = 3e-4,
    adamw_weight_decay: float = 0.0,
    adamw_betas: tuple[float, float] = (0.9, 0.95),
    verbose: bool = True,
    **others: NoReturn,
) -> list[dict[str, Any]]:
    """Groups for ``NorMuon`` or ``Muon``: matrices to it; embeddings, heads, routers, gains and biases to AdamW.

    The class of the module that holds a parameter decides: docs/reference/param-groups.md has the rules, and tables for
    common architectures. If no class decides, names and shapes do, and the printout calls it a guess. Frozen parameters
    are left out. Tied parameters appear once. Local: no rank waits for another.

    Patterns match the whole dotted name of a parameter: ``*`` stands for any characters, ``?`` for one, and ``[...]``
    works as in ``fnmatch``. Names are those of ``model.named_parameters()``, without what DDP, ``torch.compile`` and
    activation checkpointing put in front.

    Args:
        model: before or after sharding or wrapping (DDP, ``torch.compile``).
        include: patterns of parameters for the matrix optimizer, read as matrices as their class says. A dict
            also gives keys of their group: ``{"*.experts.up": {"output_dim": 1}}``; keys that say how a parameter is
            read replace what its class says. The first match counts.
        exclude: patterns of parameters for AdamW.
        adamw_lr: learning rate of the AdamW group; schedulers scale it like the others. Default 3e-4.
        adamw_weight_decay: default 0.
        adamw_betas: default (0.9, 0.95).
        verbose: print on rank 0 what was chosen, one line per rule. Default True.

    Returns:
        One group for each way to read matrices, then the AdamW group; empty groups are left out. ``params`` are
        (name, tensor) pairs, and ``name`` is different for every group.

    Raises:
        TypeError: an argument of ``NorMuon``, such as ``lr``.
        ValueError: a pattern matches no trainable parameter, or a parameter that cannot go there, or its keys are
            wrong; or the model has nothing to train, or parameters without a shape (lazy modules).
    """
    for key in others:
        raise TypeError(_unexpected(key))
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups({type(model).__name__}): give it the model itself: param_groups(model)")
    chosen = override(list(decisions(model)), include, exclude, _frozen(model))
    if not chosen:
        frozen = sum(1 for _ in model.parameters())
        raise ValueError(f"param_groups: nothing to train: of {frozen} parameters none has requires_grad=True")
    if verbose and not (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
        print("\n".join(describe(model, chosen)))
    adamw = {"algorithm": "adamw", "lr": adamw_lr, "weight_decay": adamw_weight_decay, "betas": adamw_betas}
    groups: dict[str, dict[str, Any]] = {"matrices": {"params": []}}
    for names, parameter, decision in chosen:
        keys = decision.layout if decision.matrix else adamw
        name = " ".join(["matrices", *_listed(keys)]) if decision.matrix else "adamw"
        groups.setdefault(name, {"params": [], **keys})["params"].append((names[0], parameter))
    groups["adamw"] = groups.pop("adamw", {"params": []})  # last
    return [{**group, "name": name} for name, group in groups.items() if group["params"]]


def _unexpected(key: str) -> str:
    """The error for an argument that param_groups does not have: what to write instead."""
    if key not in DEFAULTS and key not in NAMES:
        return f"param_groups() got an unexpected keyword argument {key!r}"
    adamw = f"; for AdamW it is adamw_{key}" if key in ("lr", "weight_decay", "betas") else ""
    return f"param_groups: {key!r} is an argument of NorMuon and Muon: NorMuon(param_groups(model), {key}=...){adamw}"


#: The names of a parameter (several if it is tied), the parameter, and where it goes.
Choice = tuple[list[str], torch.Tensor, Decision]


def decisions(model: nn.Module) -> Iterator[Choice]:
    """Applies the rules to every trained parameter, in the model's order. Changes and prints nothing."""
    held: dict[int, list[tuple[str, Site]]] = {}
    for name, site in _sites(model):
        if site.parameter.requires_grad:
            held.setdefault(id(site.parameter), []).append((name, site))
    roles = Roles(model)
    for places in held.values():
        found = [roles.decide(site) for _, site in places]
        # A tied head is an embedding, too.
        decision = next((one for one in found if not one.matrix), found[0])
        if decision.matrix:
            decision = replace(decision, layout=_by_output(places[0][1].shape, decision.layout))
        yield [name for name, _ in places], places[0][1].parameter, decision


def _sites(model: nn.Module) -> Iterator[tuple[str, Site]]:
    """Every place that holds a parameter, with the name that torch gives it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for prefix, module in modules.items():
        if is_a(module, "torch.", "FullyShardedDataParallel"):
            raise ValueError(f"param_groups: {FSDP1}")
        names = prefix.split(".") if prefix else []
        path = [modules[".".join(names[:end])] for end in range(len(names) + 1)]
        bare = bare_name(f"{prefix}.").count(".")  # names without those of wrappers
        inner = [module for module, name in zip(path, [*names, ""]) if name not in _WRAPPED][-bare - 1 :]
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if is_lazy(parameter):
                raise ValueError(f"parameter '{name}' is lazy and has no shape yet: run one forward first")
            yield name, Site(bare_name(name), parameter, tuple(inner))


def _by_output(shape: tuple[int, ...], layout: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to the layout the side that NorMuon normalizes, for squares that are stored (input, output).

    NorMuon normalizes the longer side, and the rows of a square. Rows are outputs unless the matrix is stored
    transposed.
    """
    rows, columns = (shape[0], prod(shape[1:])) if layout.get("flatten") else shape[-2:]
    heights = layout.get("split_rows") or [rows // layout.get("heads", 1)]
    sides = {*heights, *(layout.get("split_columns") or [columns])}
    return {**layout, "normalize": "columns"} if layout.get("output_dim") == 1 and len(sides) == 1 else dict(layout)


def override(
    chosen: list[Choice], include: Patterns, exclude: str | Sequence[str], frozen: Sequence[list[str]] = ()
) -> list[Choice]:
    """Applies the user's patterns. Raises ValueError for a pattern that cannot be followed.

    ``frozen`` has the names of the parameters that are left out, for the error.
    """
    wanted = {"include": _patterns(include), "exclude": _patterns(exclude)}
    for argument, patterns in wanted.items():
        for pattern in patterns:
            if not any(_match(names, pattern) for names, _, _ in chosen):
                hint = _near_matches(pattern, [names for names, _, _ in chosen], frozen)
                raise ValueError(f"param_groups: {argument} pattern {pattern!r} matches no trainable parameter{hint}")
    for pattern, keys in wanted["include"].items():
        _check_included_keys(f"param_groups: include {pattern!r}", keys)
    out = []
    for names, parameter, decision in chosen:
        into, out_of = ([p for p in wanted[way] if _match(names, p)] for way in ("include", "exclude"))
        if into and out_of:
            raise ValueError(f"parameter '{names[0]}': include {into[0]!r} and exclude {out_of[0]!r} both match it")
        if out_of:
            decision = replace(decision, matrix=False, rule=f"exclude {out_of[0]!r}", guess=False)
        elif into:
            decision = _included(names[0], tuple(parameter.shape), decision, into[0], wanted["include"][into[0]])
        out.append((names, parameter, decision))
    return out


def _patterns(given: Patterns) -> dict[str, Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return dict(given)
    return {pattern: {} for pattern in ([given] if isinstance(given, str) else given)}


def _match(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(bare_name(name), pattern) for name in names)


def _frozen(model: nn.Module) -> list[list[str]]:
    """The names of each frozen parameter; a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    return list(names.values())


def _near_matches(pattern: str, trained: Sequence[list[str]], frozen: Sequence[list[str]]) -> str:
    """Says what a pattern that matches no trained parameter matches instead; empty if nothing."""

    def count(pattern: str, parameters: Sequence[list[str]]) -> int:
        return sum(_match(names, pattern) for names in parameters)

    if number := count(pattern, frozen):
        return f"; it matches {number} frozen one{'s' * (number > 1)}"
    part = f"*{pattern.strip('*')}*"
    whole = f"; patterns match whole names: {part!r} matches"
    if number := count(part, trained):
        return f"{whole} {number}"
    if number := count(part, frozen):
        return f"{whole} {number} frozen one{'s' * (number > 1)}"
    return ""


def _check_included_keys(where: str, keys: Mapping[str, Any]) -> None:
    check_keys(keys, NAMES, where)
    algorithm = keys.get("algorithm", MATRIX_ALGORITHMS[0])
    if algorithm not in MATRIX_ALGORITHMS:
        known = ", ".join(name for name in MATRIX_ALGORITHMS if name != "rule")  # which MatrixOptimizer chooses itself
        raise ValueError(
            f"{where}: algorithm {algorithm!r} is not for matrices ({known}); exclude= gives parameters to AdamW"
        )


def _included(name: str, shape: tuple[int, ...], decision: Decision, pattern: str, keys: Mapping[str, Any]) -> Decision:
    if len(shape) < 2 and "view" not in keys:
        raise ValueError(f"parameter '{name}': include {pattern!r} matches it, but its shape {shape} has no matrix")
    by_class = _by_output(shape, decision.layout)
    layout = dict(keys) if _LAYOUT & keys.keys() else {**by_class, **keys}
    if len(shape) > 3 and not ({"view", "flatten"} & layout.keys()):
        raise ValueError(
            f"parameter '{name}': include {pattern!r} matches it, but no rule reads its shape {shape} as matrices: say"
            f' how, with include={{{pattern!r}: {{"flatten": True}}}}, or {{"view": (..., rows, columns)}}'
        )
    return Decision(True, f"include {pattern!r}", layout)


def describe(model: nn.Module, chosen: Sequence[Choice]) -> list[str]:
    """One line per rule and way to read matrices: how many parameters, where they go, what decided, examples."""
    lines: dict[tuple[bool, str, str, bool], list[tuple[str, torch.Tensor]]] = {}
    for names, parameter, decision in chosen:
        keys = ", ".join(_listed(decision.layout)) if decision.matrix else ""
        lines.setdefault((decision.matrix, keys, decision.rule, decision.guess), []).append((names[0], parameter))
    out = []
    for (matrix, keys, rule, guess), members in sorted(lines.items(), key=lambda line: not line[0][0]):
        to = "the matrix optimizer" + f" with {keys}" * bool(keys) if matrix else "adamw"
        out.append(f"muster: {_count(members)} to {to}; {'guess' if guess else 'rule'}: {rule}; {_examples(members)}")
    if any(decision.guess for _, _, decision in chosen):
        out.append("muster: include= and exclude= of param_groups override a guess")
    if _misses_head(model, chosen):
        out.append("muster: no output head was found; if the last linear layer is one, give exclude=")
    frozen = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        out.append(f"muster: {_count(frozen)} left out: frozen; {_examples(frozen)}")
    return out


def _misses_head(model: nn.Module, chosen: Sequence[Choice]) -> bool:
    """True if linear layers are matrices, none of the model's is a head, and the user excludes none."""
    weights = [site for _, site in _sites(model) if is_a(site.module, "torch.", "Linear") and site.leaf == "weight"]
    linear = {id(site.parameter) for site in weights}
    ways = [decision for _, parameter, decision in chosen if id(parameter) in linear]
    if not any(decision.matrix for decision in ways) or any(d.rule.startswith("exclude ") for d in ways):
        return False
    roles = Roles(model)
    return not any(roles.is_head(site) for site in weights)


def _listed(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]


def _count(members: Sequence[tuple[str, torch.Tensor]]) -> str:
    elements = sum(parameter.numel() for _, parameter in members)
    return f"{len(members)} parameter{'s' * (len(members) > 1)} of {elements:,} elements"


def _examples(members: Sequence[tuple[str, torch.Tensor]]) -> str:
    return ", ".join(name for name, _ in members[:3]) + (", ..." if len(members) > 3 else "")
