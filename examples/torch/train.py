"""Trains a small GPT on Shakespeare, byte by byte.

    python train.py                                             # one process
    torchrun --nproc-per-node 4 train.py --parallel ddp
    torchrun --nproc-per-node 4 train.py --parallel fsdp
    torchrun --nproc-per-node 4 train.py --parallel fsdp-tp     # 2 x 2

Every rank reads its part of the same batch, so that all ways learn the same. Only `parallelize` knows which one it is:
the optimizer's two lines, in gpt.py, do not change.
"""

from __future__ import annotations

import gpt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: gpt.GPT, how: str, device: str) -> tuple[nn.Module, int, int]:
    """The model, spread over the ranks; which part of a batch this one reads, of how many."""
    if how == "none":
        return model, 0, 1
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if how == "ddp":
        return DistributedDataParallel(model), rank, ranks
    data, tensor = (ranks, 1) if how == "fsdp" else (ranks // 2, 2)
    mesh = init_device_mesh(device, (data, tensor), mesh_dim_names=("data", "tensor"))
    if tensor > 1:
        columns, rows = ColwiseParallel(), RowwiseParallel()
        split = {"q": columns, "k": columns, "v": columns, "o": rows, "mlp.up": columns, "mlp.down": rows}
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], split)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, mesh.get_local_rank("data"), data


def main() -> None:
    options = gpt.parse(__doc__, parallel=["none", "ddp", "fsdp", "fsdp-tp"])
    gpt.start(options.device)
    torch.manual_seed(0)
    model, part, parts = parallelize(gpt.GPT().to(options.device), options.parallel, options.device)
    gpt.train(model, options, part, parts)
    gpt.stop()


if __name__ == "__main__":
    main()
