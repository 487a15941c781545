"""Sensible default param groups for a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .groups import bare_name

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_HEADS = ("head", "lm_head", "output", "unembed", "classifier")


def param_groups(
    model: nn.Module,
    *,
    adamw_lr: float = 3e-4,
    adamw_weight_decay: float = 0.0,
    adamw_betas: tuple[float, float] = (0.9, 0.95),
    verbose: bool = True,
) -> list[dict[str, Any]]:
    """Groups for ``NorMuon`` or ``Muon``: matrices to it; embeddings, heads, gains and biases to AdamW.

    A head is a linear layer whose name ends in one of head, lm_head, output, unembed, classifier, or the only one of an
    embedding's shape. Convolutions, (output, input, height, width), are read as matrices of (output, everything else),
    transposed ones, (input, output, height, width), as (input, everything else); other parameters of three dimensions
    and more, (..., output, input), as stacks of matrices, but for those with a first dimension of 1, such as positions
    and class tokens, which go to AdamW. Tied parameters are given once.

    Args:
        model: sharded or wrapped (DDP, ``torch.compile``) already, or not.
        adamw_lr: learning rate of the AdamW group; schedulers scale it like the others. Default 3e-4.
        adamw_weight_decay: default 0.
        adamw_betas: default (0.9, 0.95).
        verbose: print on rank 0 what was chosen. Default True.

    Returns:
        Up to four groups, those that have members, in this order: matrices, convolutions, transposed convolutions,
        elementwise. ``params`` are (name, tensor) pairs.
    """
    tables = [m.weight for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    embeddings, shapes = {id(table) for table in tables}, {tuple(table.shape) for table in tables}
    linear = {id(m.weight): tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear)}
    number = Counter(linear.values())
    options: dict[str, dict[str, Any]] = {
        "matrices": {},
        "convolutions": {"flatten": True},
        "transposed convolutions": {"flatten": True, "output_dim": 1},
        "elementwise": {
            "algorithm": "adamw",
            "lr": adamw_lr,
            "weight_decay": adamw_weight_decay,
            "betas": adamw_betas,
        },
    }
    chosen: dict[str, list[tuple[str, torch.Tensor]]] = {kind: [] for kind in options}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # tied
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{leaf}" if prefix else leaf
            shape = tuple(parameter.shape)
            head = isinstance(module, nn.Linear) and (
                bare_name(f"{prefix}.").rstrip(".").rsplit(".", 1)[-1] in _HEADS
                or (shape in shapes and number[shape] == 1)
            )
            if len(shape) < 2 or id(parameter) in embeddings or head:
                kind = "elementwise"
            elif isinstance(module, _CONVOLUTIONS):
                kind = "convolutions"
            elif isinstance(module, _TRANSPOSED):
                kind = "transposed convolutions"
            elif len(shape) > 2 and shape[0] == 1:
                kind = "elementwise"
            else:
                kind = "matrices"
            chosen[kind].append((name, parameter))
    groups = [{"params": chosen[kind], **options[kind]} for kind in chosen if chosen[kind]]
    if verbose and not (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
        for kind, members in chosen.items():
            elements = sum(p.numel() for _, p in members)
            to = "adamw" if kind == "elementwise" else "the matrix optimizer"
            for_example = ", ".join(name for name, _ in members[:4]) + (", ..." if len(members) > 4 else "")
            if members:
                print(f"muster: {len(members)} {kind} of {elements:,} elements to {to}: {for_example}")
    return groups
