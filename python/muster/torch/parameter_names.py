"""Names of parameters, as long as groups change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .groups import bare_name


def name_parameters(
    groups: Sequence[dict[str, Any]], known: Mapping[torch.Tensor, str] | None = None
) -> list[list[str]]:
    """By group: the names torch was given, without what wrappers put in front; else by group and place.

    A list of params that was changed by hand has fewer or more than ``param_names``: then tensors keep the names by
    which they are ``known``, others are named by place, and ``param_names`` is made to match.
    """
    out = []
    for number, group in enumerate(groups):
        tensors, given = group["params"], group.get("param_names")
        places = [f"group{number}.param{i}" for i in range(len(tensors))]
        if given is not None and len(given) != len(tensors):
            given = [(known or {}).get(tensor, place) for tensor, place in zip(tensors, places)]
            group["param_names"] = given
        out.append([bare_name(name) for name in given or places])
    return out
