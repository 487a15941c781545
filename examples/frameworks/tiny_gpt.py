"""What the examples share: a tiny GPT over bytes, and the text that it learns (data/shakespeare.txt)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


class TinyGPT(nn.Module):
    """(batch, time + 1) bytes to their mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        inputs, targets = text[:, :-1], text[:, 1:]
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), targets.flatten())


class Text(Dataset[Tensor]):
    """Rows of CONTEXT + 1 bytes."""

    def __init__(self) -> None:
        text = (Path(__file__).parents[2] / "data" / "shakespeare.txt").read_bytes()
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, row: int) -> Tensor:
        if row >= len(self):
            raise IndexError(row)
        return self.text[row * CONTEXT : (row + 1) * CONTEXT + 1]


def parse(description: str | None) -> argparse.Namespace:
    """The options that all examples have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="for checkpoints")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=4, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    return parser.parse_args()
