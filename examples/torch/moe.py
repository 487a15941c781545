"""Trains a small GPT with experts: expert parallelism x FSDP2.

    python moe.py                                # one process, all experts
    torchrun --nproc-per-node 4 moe.py           # experts on 2 ranks, each half sharded over 2; the rest over all 4

A layer's experts are two stacks of matrices, (experts, output, input). Each rank of the mesh's axis "expert" has some
of them, and tokens travel to where their expert is; along "data" FSDP2 shards what it has. All other parameters are
sharded by FSDP2 over all ranks. The optimizer is told nothing of this: it reads both meshes from the parameters.
"""

from __future__ import annotations

from typing import Any

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

EXPERTS = 4


class Exchange(torch.autograd.Function):
    """Rows to other ranks: so many to each, in their order, and so many from each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.back = received, sent, group
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return Exchange.apply(grad, *ctx.back), None, None, None


class Experts(nn.Module):
    """Tokens in the order of their experts, (tokens, width), and how many each has, to the same of what they say."""

    def __init__(self) -> None:
        super().__init__()
        shape = EXPERTS, 4 * gpt.WIDTH, gpt.WIDTH
        self.up = nn.Parameter(torch.randn(shape) * gpt.WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(shape).mT.contiguous() * (4 * gpt.WIDTH) ** -0.5)
        self.group: dist.ProcessGroup | None = None  # whose ranks have the experts

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        if self.group is None:
            return self._speak(tokens, counts)
        ranks = dist.get_world_size(self.group)
        theirs = torch.empty_like(counts)  # by rank, then by expert of mine
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, received = counts.view(ranks, -1).sum(1).tolist(), theirs.view(ranks, -1).sum(1).tolist()
        said = self._speak(Exchange.apply(tokens, sent, received, self.group), theirs)
        return Exchange.apply(said, received, sent, self.group)

    def _speak(self, tokens: Tensor, counts: Tensor) -> Tensor:
        up, down = (self._mine(stack) for stack in (self.up, self.down))
        out = []
        for i, piece in enumerate(tokens.split(counts.tolist())):
            expert = i % len(up)
            out.append(F.relu(piece @ up[expert].T).square() @ down[expert].T)
        return torch.cat(out)

    def _mine(self, stack: Tensor) -> Tensor:
        """The experts of this rank."""
        if not isinstance(stack, DTensor):
            return stack
        mine = stack.to_local()
        if mine.requires_grad:
            # Tokens of all ranks of the group were here, each with its own mean as loss; FSDP2 averages along "data".
            mine.register_hook(lambda grad: grad / dist.get_world_size(self.group))
        return mine


class Moe(nn.Module):
    """Every token goes to one expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(gpt.WIDTH, EXPERTS, bias=False), Experts()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        said = self.experts(tokens[order], chosen.bincount(minlength=EXPERTS))
        return (said[order.argsort()] * weight[:, None]).view_as(x)


def parallelize(model: gpt.GPT, device: str) -> tuple[nn.Module, int, int]:
    """The model, spread over the ranks; which part of a batch this one reads, of how many."""
    if not dist.is_initialized():
        return model, 0, 1
    ranks = dist.get_world_size()
    mesh = init_device_mesh(device, (ranks // 2, 2), mesh_dim_names=("data", "expert"))
    everybody = init_device_mesh(device, (ranks,))
    for block in model.blocks:
        experts = block.mlp.experts
        experts.group = mesh.get_group("expert")
        for name, stack in list(experts.named_parameters()):
            setattr(experts, name, nn.Parameter(distribute_tensor(stack.detach(), mesh["expert"], [Shard(0)])))
        fully_shard(experts, mesh=mesh["data"], shard_placement_fn=lambda _: Shard(1))
        fully_shard(block, mesh=everybody)
    fully_shard(model, mesh=everybody)
    return model, dist.get_rank(), ranks


def main() -> None:
    options = gpt.parse(__doc__)
    gpt.start(options.device)
    torch.manual_seed(0)
    model, part, parts = parallelize(gpt.GPT(Moe).to(options.device), options.device)
    gpt.train(model, options, part, parts)
    gpt.stop()


if __name__ == "__main__":
    main()
