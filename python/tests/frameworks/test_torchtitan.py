"""torchtitan's OptimizersContainer under FSDP2: its state dict is flat, keyed by names."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts import values
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

import muster.torch

SAVED, STEPS = 3, 6


class _Container(OptimizersContainer):
    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Any:
        return {"NorMuon": muster.torch.NorMuon}[name]


class _Training:
    """Uneven shards on 2 and 3 ranks, with gradients that are the same on any number of ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 13))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        groups = {
            r"^1\.weight": {"lr": 0.02, "weight_decay": 0.1},
            r"^3\.weight": {"lr": 0.01, "heads": 13},
            r".*": {"algorithm": "adamw", "lr": 0.005, "betas": (0.9, 0.99)},
        }
        config = OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(pattern=pattern, optimizer_name="NorMuon", optimizer_kwargs=keys)
                for pattern, keys in groups.items()
            ],
            implementation="for-loop",
        )
        self.optimizers = _Container(config, model_parts=[self.model])

    def train(self, steps: range) -> None:
        for step in steps:
            for name, weight in self.model.named_parameters():
                whole = values(name, step, weight.shape).reshape(weight.shape)
                weight.grad = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
            self.optimizers.step()
            self.optimizers.zero_grad()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.full_tensor().detach() for name, weight in self.model.named_parameters()}

    def assert_weights(self, expected: dict[str, torch.Tensor]) -> None:
        for name, weight in self.weights().items():
            assert torch.equal(weight, expected[name]), name

    def checkpoint(self) -> dict[str, Any]:
        """As torchtitan gives it to torch.distributed.checkpoint."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizers}


def _save(rank: int, ranks: int, folder: str) -> None:
    training = _Training()
    training.train(range(SAVED))
    dcp.save(training.checkpoint(), checkpoint_id=f"{folder}/saved")
    training.train(range(SAVED, STEPS))
    weights = training.weights()
    if rank == 0:
        torch.save(weights, f"{folder}/weights")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that two ranks made, with the weights that they came to."""
    folder = str(tmp_path_factory.mktemp("torchtitan"))
    run_ranks(2, _save, folder)
    return folder


def _resume(rank: int, ranks: int, folder: str, steps_before: int) -> None:
    training = _Training()
    training.train(range(100, 100 + steps_before))
    dcp.load(training.checkpoint(), checkpoint_id=f"{folder}/saved")
    training.train(range(SAVED, STEPS))
    training.assert_weights(torch.load(f"{folder}/weights"))


@pytest.mark.parametrize("ranks, steps_before", [(3, 0), (3, 2), (2, 0)])
def test_what_two_ranks_saved_continues_bit_for_bit(saved: str, ranks: int, steps_before: int) -> None:
    run_ranks(ranks, _resume, saved, steps_before)


def _hand_over(rank: int, ranks: int) -> None:
    """A container that has done nothing yet takes the state of another one, without a file."""
    first, second = _Training(), _Training()
    first.train(range(SAVED))
    second.model.load_state_dict(first.model.state_dict())
    second.optimizers.load_state_dict(copy.deepcopy(first.optimizers.state_dict()))
    first.train(range(SAVED, STEPS))
    second.train(range(SAVED, STEPS))
    second.assert_weights(first.weights())


def test_a_fresh_container_loads_the_state_of_another() -> None:
    run_ranks(2, _hand_over)
