"""Three ways to save a training, on any number of ranks (docs/howto/checkpoints-and-resharding.md).

torchrun --standalone --nproc-per-node 2 checkpoints.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import muster.torch

dist.init_process_group("gloo")
folder = Path(sys.argv[1])


def make(sharded: bool) -> tuple[nn.Module, muster.torch.NorMuon]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 33))
    if sharded:
        fully_shard(model)
    return model, muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False), lr=0.02)


def train(model: nn.Module, optimizer: muster.torch.NorMuon) -> list[torch.Tensor]:
    """Two steps, with the same gradients each time. Returns the whole weights."""
    for _ in range(2):
        model(torch.eye(32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [w.full_tensor() if isinstance(w, DTensor) else w.clone() for w in (p.detach() for p in model.parameters())]


def check(what: str, ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    if not all(torch.equal(a, b) for a, b in zip(ours, expected)):
        raise SystemExit(f"{what}: the resumed training differs")
    if dist.get_rank() == 0:
        print(f"{what}: same bits", flush=True)


# One process, or replicas as under DDP: rank 0 saves, all ranks load.
path = folder / "checkpoint.pt"
model, optimizer = make(sharded=False)
train(model, optimizer)
if dist.get_rank() == 0:
    # [torch-save]
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    # [/torch-save]
dist.barrier()
expected = train(model, optimizer)
model, optimizer = make(sharded=False)
# [torch-load]
saved = torch.load(path)
model.load_state_dict(saved["model"])  # first the model, on all ranks
optimizer.load_state_dict(saved["optimizer"])
# [/torch-load]
check("torch.save", train(model, optimizer), expected)

# DTensors: torch.distributed.checkpoint.
path = folder / "dcp"
model, optimizer = make(sharded=True)
train(model, optimizer)
# [dcp-save]
state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
dcp.save(state, checkpoint_id=path)
# [/dcp-save]
expected = train(model, optimizer)
model, optimizer = make(sharded=True)
# [dcp-load]
state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
dcp.load(state, checkpoint_id=path)
set_model_state_dict(model, state["model"])
set_optimizer_state_dict(model, optimizer, state["optimizer"])
# [/dcp-load]
check("torch.distributed.checkpoint", train(model, optimizer), expected)

# Muster's own: weights and state, from any layout to any other.
path = folder / "own"
model, optimizer = make(sharded=True)
train(model, optimizer)
# [save]
optimizer.save(path)  # all ranks together
# [/save]
expected = train(model, optimizer)
model, optimizer = make(sharded=True)
# [load]
optimizer.load(path)  # all ranks together; sets the model's weights, too
# [/load]
check("save", train(model, optimizer), expected)
model, optimizer = make(sharded=False)
optimizer.load(path)  # on another layout
check("save, then replicas", train(model, optimizer), expected)

dist.barrier()
dist.destroy_process_group()
