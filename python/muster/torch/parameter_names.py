"""Names of parameters, as long as groups change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch

from .groups import bare_name


def name_parameters(
    groups: Sequence[dict[str, Any]], known: Mapping[torch.Tensor, str] | None = None
) -> list[list[str]]:
    """By group: the names torch was given, without what wrappers put in front; else by group and place.

    Where lists of params were changed by hand, ``param_names`` may not correspond any more: a tensor ``known`` by one
    of its names keeps that name, another has the name at its place unless that is taken. ``param_names`` is made to
    match.
    """
    out = []
    for number, group in enumerate(groups):
        places = [f"group{number}.param{i}" for i in range(len(group["params"]))]
        if group.get("param_names") is None:
            out.append(places)
            continue
        bare = [bare_name(name) for name in group["param_names"]]
        given = dict(zip(bare, group["param_names"]))
        kept = [known.get(tensor) if known else None for tensor in group["params"]]
        taken = {name for name in kept if name in given}
        names = []
        for name, place, at in zip_longest(kept, places, bare[: len(places)]):
            names.append(name if name in taken else at if at is not None and at not in taken else place)
        full = [given.get(name, name) for name in names]
        if full != group["param_names"]:
            group["param_names"] = full
        out.append(names)
    return out
