"""QK-clip: attention layers that report the largest logit of each head, and an optimizer that bounds it.

python qk_clip.py
torchrun --standalone --nproc-per-node 2 qk_clip.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import muster.torch

WIDTH, HEADS, KEY_HEADS, HEAD, TIME, STEPS = 32, 4, 2, 8, 16, 30
TAU = 2.0  # 100 in large models; small here, so that heads exceed it


class Attention(nn.Module):
    """Causal attention with grouped queries. ``largest`` has the largest logit of each head since it was cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, HEADS * HEAD, bias=False), nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.v, self.o = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.largest = torch.full((HEADS,), -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (k, v))
        # [maxima]
        scores = q @ k.mT / HEAD**0.5
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        self.largest = torch.maximum(self.largest, scores.detach().amax(dim=(0, 2, 3)))
        mixed = scores.softmax(-1) @ v
        # [/maxima]
        # FlexAttention never holds the scores, and reports the largest of each query instead. On a GPU:
        # [flex]
        # from torch.nn.attention.flex_attention import AuxRequest, flex_attention
        # mixed, aux = flex_attention(q, k, v, block_mask=causal, return_aux=AuxRequest(max_scores=True))
        # self.largest = torch.maximum(self.largest, aux.max_scores.detach().amax(dim=(0, 2)))
        # [/flex]
        return self.o(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(F.rms_norm(x, (WIDTH,)))
        return self.head(F.rms_norm(x, (WIDTH,)))


def train(tau: float | None) -> float:
    """Returns the largest logit of the last step."""
    torch.manual_seed(0)
    model = Model()
    # [heads]
    qk_heads = {
        f"layers.{i}": muster.torch.QKHeads.separate(
            f"layers.{i}.q.weight", f"layers.{i}.k.weight", heads=HEADS, key_heads=KEY_HEADS, head_dim=HEAD
        )
        for i in range(len(model.layers))
    }
    groups = muster.torch.param_groups(model, verbose=False)
    optimizer = muster.torch.Muon(groups, lr=0.05, grad_sync=True, qk_heads=qk_heads)
    # [/heads]
    rank = dist.get_rank() if dist.is_initialized() else 0
    data = torch.Generator().manual_seed(rank)
    largest = 0.0
    for step in range(1, STEPS + 1):
        first = torch.randint(64, (8, 1), generator=data)
        tokens = (first + torch.arange(TIME + 1) * (first % 5 + 1)) % 64  # each sequence counts in steps of its own
        for layer in model.layers:
            layer.largest.fill_(-torch.inf)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        largest = max(float(layer.largest.max()) for layer in model.layers)
        if tau is not None:
            # [step]
            maxima = {f"layers.{i}": layer.largest for i, layer in enumerate(model.layers)}
            optimizer.qk_clip(maxima, tau=tau)
            optimizer.step()
            # [/step]
        else:
            optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}  largest logit {largest:.2f}", flush=True)
    return largest


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    print("without QK-clip")
    train(None)
    print(f"with QK-clip, tau {TAU}")
    train(TAU)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
