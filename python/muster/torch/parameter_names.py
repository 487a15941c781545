"""Names of parameters, also after param groups have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch

from .groups import bare_name


def name_parameters(
    groups: Sequence[dict[str, Any]], known: Mapping[torch.Tensor, str] | None = None
) -> list[list[str]]:
    """Names by group: those given to torch, without the prefixes of wrappers; else made of group and place.

    If lists of params were changed by hand, ``param_names`` may not match any more. A tensor that is ``known`` by one
    of the names keeps it; any other gets the name at its place unless that is taken. Then ``param_names`` is updated.
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
