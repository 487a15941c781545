"""Sensible default param groups for a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
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

    A head is a linear layer whose name ends in one of head, lm_head, output, unembed, classifier, or that has as many
    outputs as an embedding has entries. Convolutions, (output, input, height, width), are read as matrices of
    (output, everything else); other parameters of three dimensions and more, (..., output, input), as stacks of
    matrices. Tied parameters are given once.

    Args:
        model: sharded or wrapped (DDP, ``torch.compile``) already, or not.
        adamw_lr: learning rate of the AdamW group; schedulers scale it like the others. Default 3e-4.
        adamw_weight_decay: default 0.
        adamw_betas: default (0.9, 0.95).
        verbose: print on rank 0 what was chosen. Default True.

    Returns:
        Up to three groups, those that have members, in this order: matrices, convolutions, elementwise. ``params`` are
        (name, tensor) pairs.
    """
    vocabularies = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    chosen: dict[str, list[tuple[str, torch.Tensor]]] = {"matrices": [], "convolutions": [], "elementwise": []}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # tied
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{leaf}" if prefix else leaf
            head = isinstance(module, nn.Linear) and (
                prefix.rsplit(".", 1)[-1] in _HEADS or module.out_features in vocabularies
            )
            if parameter.ndim < 2 or id(parameter) in embeddings or head:
                kind = "elementwise"
            elif isinstance(module, _CONVOLUTIONS):
                kind = "convolutions"
            else:
                kind = "matrices"
            chosen[kind].append((name, parameter))
    adamw = {"algorithm": "adamw", "lr": adamw_lr, "weight_decay": adamw_weight_decay, "betas": adamw_betas}
    options: dict[str, dict[str, Any]] = {"matrices": {}, "convolutions": {"flatten": True}, "elementwise": adamw}
    groups = [{"params": chosen[kind], **options[kind]} for kind in chosen if chosen[kind]]
    if verbose and not (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
        for kind, members in chosen.items():
            elements = sum(p.numel() for _, p in members)
            to = "adamw" if kind == "elementwise" else "the matrix optimizer"
            for_example = ", ".join(name for name, _ in members[:4]) + (", ..." if len(members) > 4 else "")
            if members:
                print(f"muster: {len(members)} {kind} of {elements:,} elements to {to}: {for_example}")
    return groups
