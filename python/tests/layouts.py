"""Models sharded in the ways people shard them, and a check that a layout does not change a bit.

A model is built with the number of each element in place of its weight and sharded by torch itself. What a rank then
has are the numbers of its elements: no rule of Muster's says where they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import muster.torch


class Model(nn.Module):
    """Shapes that divide badly: 9 rows on 4 x 2, 3 rows on 4 ranks, 5 experts on 2."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.up = nn.Linear(8, 18)
        self.down = nn.Linear(18, 9, bias=False)
        self.small = nn.Linear(9, 3)
        self.odd = nn.Linear(9, 9, bias=False)
        self.experts = nn.Parameter(torch.empty(5, 6, 4))
        self.unused = nn.Linear(4, 4)
        for parameter in self.parameters():
            parameter.data = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)


def _mesh(model: nn.Module, sizes: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    return init_device_mesh(next(model.parameters()).device.type, sizes, mesh_dim_names=names)


def _replace(model: nn.Module, name: str, mesh, placements) -> None:
    whole = getattr(model, name).detach()
    setattr(model, name, nn.Parameter(distribute_tensor(whole, mesh, placements, src_data_rank=None)))


def alone(model: Model, ranks: int) -> None:
    del model, ranks


def fsdp(model: Model, ranks: int) -> None:
    mesh = _mesh(model, (ranks,))
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def fsdp_columns(model: Model, ranks: int) -> None:
    mesh = _mesh(model, (ranks,), ("anything",))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1 if p.shape[-1] % ranks == 0 else 0))


def hsdp(model: Model, ranks: int) -> None:
    fully_shard(model, mesh=_mesh(model, (2, ranks // 2), ("a", "b")))


def _parallelize(model: Model, mesh) -> None:
    parallelize_module(
        model,
        mesh,
        {"up": ColwiseParallel(), "down": RowwiseParallel(), "small": ColwiseParallel(), "odd": ColwiseParallel()},
        src_data_rank=None,  # all have the same
    )


def tp(model: Model, ranks: int) -> None:
    _parallelize(model, _mesh(model, (ranks,), ("tp",)))


def dp_tp(model: Model, ranks: int) -> None:
    """Tensor parallelism on slices of a mesh; its replicas are nowhere in the DTensors."""
    _parallelize(model, _mesh(model, (ranks // 2, 2), ("dp", "tp"))["tp"])


def fsdp_tp(model: Model, ranks: int) -> None:
    mesh = _mesh(model, (ranks // 2, 2), ("dp", "tp"))
    _parallelize(model, mesh["tp"])
    for layer in (model.up, model.down, model.small, model.odd):
        fully_shard(layer, mesh=mesh["dp"])


def ep_fsdp(model: Model, ranks: int) -> None:
    """Experts on a mesh of their own, beside FSDP and plain tensors: three layouts in one model."""
    square = _mesh(model, (2, ranks // 2), ("ep", "shard"))
    _replace(model, "experts", square, (Shard(0), Shard(1)))
    line = _mesh(model, (ranks,))
    fully_shard(model.up, mesh=line)
    _replace(model.down, "weight", square, (Replicate(), Shard(1)))


def layouts(ranks: int) -> list[Callable[[Model, int], None]]:
    """Those that so many ranks can have."""
    return [alone, fsdp, fsdp_columns, tp] + ([hsdp, dp_tp, fsdp_tp, ep_fsdp] if ranks % 2 == 0 else [])


def groups(model: nn.Module) -> list[dict]:
    """Blocks of rows, stacks, AdamW and Lion; two learning rates."""
    named = dict(model.named_parameters())
    take = lambda *names: [(name, named.pop(name)) for name in names]  # noqa: E731
    return [
        {"params": take("up.weight"), "split_rows": [6, 8, 4], "weight_decay": 0.1, "decay": "cautious"},
        {"params": take("down.weight", "experts"), "lr": 0.05, "algorithm": "muon"},
        {"params": take("small.weight", "odd.weight", "unused.weight"), "every": 2},
        {"params": take("embedding.weight"), "algorithm": "lion", "lr": 1e-3},
        {"params": list(named.items()), "algorithm": "adamw", "lr": 1e-2},
    ]


class Trained:
    """A model in a layout, its optimizer, and the numbers of this rank's elements."""

    def __init__(
        self,
        layout: Callable[[Model, int], None],
        group: dist.ProcessGroup,
        device: str = "cpu",
        make: Callable[..., muster.torch.NorMuon] = muster.torch.NorMuon,
        **options,
    ) -> None:
        self.model = Model().to(device)
        self.device = device
        layout(self.model, dist.get_world_size(group))
        self.numbers = {}
        for name, parameter in self.model.named_parameters():
            mine = muster.torch.layout.local(parameter.detach())
            self.numbers[name] = mine.long()
            mine.copy_(self.values(name, 0, parameter.shape)[mine.long()])
        self.optimizer = make(groups(self.model), process_group=group, **options)

    def step(self, number: int, absent: Callable[[str, torch.Tensor], torch.Tensor] | None = None) -> None:
        """With made-up gradients. ``absent`` gives a factor for each element, None for no gradient."""
        for name, parameter in self.model.named_parameters():
            parameter.grad = None
            mine = self.values(name, number, parameter.shape)[self.numbers[name]]
            factor = None if absent is None else absent(name, self.numbers[name])
            if name.startswith("unused") or (absent is not None and factor is None):
                continue
            mine = mine if factor is None else mine * factor
            if isinstance(parameter, DTensor):
                mine = DTensor.from_local(
                    mine,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            parameter.grad = mine
        self.optimizer.step()

    def values(self, name: str, step: int, shape) -> torch.Tensor:
        return values(name, step, shape).to(self.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """This rank's."""
        return {n: muster.torch.layout.local(p.detach()) for n, p in self.model.named_parameters()}


def values(name: str, step: int, shape) -> torch.Tensor:
    """All elements of a parameter, or of its gradient in a step, flat; the same on every rank."""
    generator = torch.Generator().manual_seed(1000 * step + sum(map(ord, name)))
    return torch.randn(torch.Size(shape).numel(), generator=generator)


def assert_same(trained: Trained, reference: Trained, what: str) -> None:
    """Bit for bit."""
    whole = reference.weights()
    for name, mine in trained.weights().items():
        expected = whole[name].flatten()[trained.numbers[name]]
        assert torch.equal(mine, expected), f"{what}: {name}: {(mine - expected).abs().max()}"
