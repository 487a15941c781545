"""Bytes of a text as torchtitan reads them: a tokenizer and a data loader, both without files of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tiny_gpt import Text
from torch import Tensor
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer


class Bytes(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self) -> int:
        return 256


class Rows(IterableDataset[Any]):
    """Every rank reads its own rows, and knows where it is."""

    def __init__(self, length: int, rank: int, ranks: int) -> None:
        self.text, self.length, self.next, self.ranks = Text().text, length, rank, ranks

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            begin = self.next * self.length % (len(self.text) - self.length - 1)
            self.next += self.ranks
            row = self.text[begin : begin + self.length + 1]
            yield {"input": row[:-1], "positions": torch.arange(self.length)}, row[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class BytesLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        rows = Rows(seq_len, dp_rank, dp_world_size)
        super().__init__(rows, dp_rank, dp_world_size, batch_size=local_batch_size)
