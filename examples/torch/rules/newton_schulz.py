"""Newton-Schulz in plain PyTorch, for the rules of this folder."""

import torch


def orthogonalize(u: torch.Tensor) -> torch.Tensor:
    """The polar factor of each matrix of (batch, rows, columns), by five iterations of Keller Jordan's polynomial."""
    tall = u.size(-2) > u.size(-1)
    x = u.mT if tall else u
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return x.mT if tall else x
