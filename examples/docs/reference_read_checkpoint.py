"""Prints the tensors of a checkpoint, without Muster: python3 reference_read_checkpoint.py DIRECTORY"""

import sys

# [reader]
import json
from collections.abc import Iterator
from pathlib import Path

import torch

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U16": torch.uint16, "I64": torch.int64}


def tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every tensor of a checkpoint; one file at a time is in memory."""
    index = json.loads((directory / "muster.index.json").read_text())
    for file in index["files"]:
        data = bytearray((directory / file["name"]).read_bytes())
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        for name, entry in header.items():
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            dtype = DTYPES[entry["dtype"]]
            value = torch.frombuffer(data[begin:end], dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
            yield name, value.reshape(entry["shape"])
# [/reader]


if __name__ == "__main__":
    for name, value in tensors(Path(sys.argv[1])):
        print(f"{name} {value.dtype} {list(value.shape)}")
