"""torchtitan's OptimizersContainer under FSDP2: its state dict is flat, keyed by names."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from types import ModuleType
from typing import Any
from unittest import mock

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
from torchtitan.components.optimizer import ParamGroupConfig

import muster.torch
from muster.integrations.torchtitan import MusterOptimizers

SAVED, STEPS = 3, 6


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
        config = MusterOptimizers.Config(
            param_groups=[
                ParamGroupConfig(pattern=pattern, optimizer_name="NorMuon", optimizer_kwargs=keys)
                for pattern, keys in groups.items()
            ],
        )
        self.optimizers = config.build(model_parts=[self.model])

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


def _default_groups(rank: int, ranks: int) -> None:
    """Without patterns, groups are those of muster.torch.param_groups, with torchtitan's names."""
    model = _Training().model
    config = MusterOptimizers.Config(lr=0.03, weight_decay=0.1, adamw_lr=0.004, options={"momentum": 0.9})
    (optimizer,) = config.build(model_parts=[model])
    assert type(optimizer) is muster.torch.NorMuon
    assert set(optimizer.names) == {name for name, _ in model.named_parameters()}
    matrices, adamw = optimizer.param_groups[0], optimizer.param_groups[-1]
    assert (matrices["lr"], matrices["weight_decay"], matrices["momentum"]) == (0.03, 0.1, 0.9)
    assert (adamw["algorithm"], adamw["lr"], adamw["weight_decay"]) == ("adamw", 0.004, 0.0)
    assert "0.weight" in adamw["param_names"] and "1.weight" in matrices["param_names"]
    assert "fused" not in matrices
    (muon,) = MusterOptimizers.Config(optimizer_name="Muon").build(model_parts=[model])
    assert type(muon) is muster.torch.Muon
    (other,) = MusterOptimizers.Config(include=["3.weight"], exclude=["1.*"]).build(model_parts=[model])
    algorithms = {name: group["algorithm"] for group in other.param_groups for name in group["param_names"]}
    assert (algorithms["3.weight"], algorithms["1.weight"]) == ("normuon", "adamw")


def test_without_patterns_muster_chooses_the_groups() -> None:
    run_ranks(2, _default_groups)


def _beside_adamw(rank: int, ranks: int) -> None:
    groups = [
        ParamGroupConfig(pattern=r"^[13]\.weight", optimizer_name="NorMuon"),
        ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-3}),
    ]
    training = _Training()
    training.optimizers = MusterOptimizers.Config(param_groups=groups).build(model_parts=[training.model])
    assert [type(optimizer) for optimizer in training.optimizers] == [muster.torch.NorMuon, torch.optim.AdamW]
    before = training.weights()
    training.train(range(2))
    assert all(not torch.equal(before[name], weight) for name, weight in training.weights().items())


def test_optimizers_of_torchtitan_may_stand_beside() -> None:
    run_ranks(2, _beside_adamw)


class _Pipeline:
    """Two stages on two ranks each. A rank has two parts of the model, as interleaved schedules do."""

    def __init__(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp"))
        stage = mesh.get_local_rank("pp")
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(8, 9 + i), nn.LayerNorm(9 + i)) for i in range(4)]
        self.parts = [nn.Sequential(OrderedDict({f"layer{i}": layers[i]})) for i in (stage, stage + 2)]
        for part in self.parts:
            fully_shard(part, mesh=mesh["fsdp"])
        self.optimizers = MusterOptimizers.Config(adamw_lr=0.01).build(model_parts=self.parts)

    def train(self, steps: range) -> dict[str, torch.Tensor]:
        for step in steps:
            for part in self.parts:
                for name, weight in part.named_parameters():
                    whole = values(name, step, weight.shape).reshape(weight.shape)
                    weight.grad = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
            self.optimizers.step()
            self.optimizers.zero_grad()
        return {n: w.full_tensor().detach() for part in self.parts for n, w in part.named_parameters()}

    def checkpoint(self) -> dict[str, Any]:
        model = {name: value for part in self.parts for name, value in part.state_dict().items()}
        return {"model": model, "optimizer": self.optimizers}


def _pipeline(rank: int, ranks: int, folder: str) -> dict[str, torch.Tensor]:
    pipeline = _Pipeline()
    stage = [0, 1] if rank < 2 else [2, 3]
    assert [dist.get_process_group_ranks(opt.process_group) for opt in pipeline.optimizers] == [stage, stage]
    pipeline.train(range(SAVED))
    dcp.save(pipeline.checkpoint(), checkpoint_id=folder)
    whole = pipeline.train(range(SAVED, STEPS))
    resumed = _Pipeline()
    dcp.load(resumed.checkpoint(), checkpoint_id=folder)
    for name, weight in resumed.train(range(SAVED, STEPS)).items():
        assert torch.equal(weight, whole[name]), name
    return whole


def test_pipeline_stages_have_optimizers_of_their_own(tmp_path: Any) -> None:
    stages = run_ranks(4, _pipeline, str(tmp_path / "saved"))
    assert set(stages[0]) | set(stages[2]) == {f"layer{i}.{n}" for i in range(4) for n in _PARAMETERS}
    for name, weight in {**stages[0], **stages[2]}.items():
        assert torch.equal(weight, {**stages[1], **stages[3]}[name]), name


_PARAMETERS = ("0.weight", "0.bias", "1.weight", "1.bias")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"implementation": "fused_opt_states_bf16"}, "momentum_dtype"),
        ({"options": {"replicate_state": False}}, "torchtitan loads only what is in it"),
        ({"options": {"grad_sync": True}}, "torchtitan loads only what is in it"),
        ({"options": {"process_group": None}}, "leave it out"),
    ],
)
def test_what_would_be_ignored_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MusterOptimizers.Config(**fields).build(model_parts=[nn.Linear(2, 2)])


def test_fields_are_flags_of_the_command_line() -> None:
    from torchtitan.config import ConfigManager
    from torchtitan.trainer import Trainer

    module = ModuleType("my_configs")
    module.muster = lambda: Trainer.Config(optimizer=MusterOptimizers.Config(lr=0.02))
    flags = ["--optimizer.lr", "0.01", "--optimizer.adamw_betas", "0.8", "0.9", "--optimizer.exclude", "a.*"]
    with mock.patch.dict(sys.modules, my_configs=module):
        config = ConfigManager().parse_args(["--module", "my_configs", "--config", "muster", *flags])
    assert isinstance(config.optimizer, MusterOptimizers.Config)
    assert (config.optimizer.lr, config.optimizer.adamw_betas) == (0.01, (0.8, 0.9))
    assert config.optimizer.exclude == ["a.*"]
