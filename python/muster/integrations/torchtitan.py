"""Muon and NorMuon in torchtitan.

    from muster.integrations.torchtitan import MusterOptimizers

    config = llama3_debugmodel()                                     # any Trainer.Config
    config.optimizer = MusterOptimizers.Config(lr=0.02, adamw_lr=3e-4)

torchtitan builds the container from its config after the model has been sharded; ``--optimizer.lr`` and the other
fields are flags of its command line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpointer.utils import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    canonical_fqn,
)
from torchtitan.components.optimizer import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    OptimizersContainer,
    ParamGroupConfig,
)

from ..torch import Muon, NorMuon, param_groups

__all__ = ["MusterOptimizers"]

_OPTIMIZERS: dict[str, type[NorMuon]] = {"Muon": Muon, "NorMuon": NorMuon}
_Groups = tuple[dict[str, list[dict[str, Any]]], dict[str, list[str]]]


class MusterOptimizers(OptimizersContainer):  # type: ignore[misc,type-arg,unused-ignore]
    """torchtitan's container of optimizers, with one NorMuon or Muon per model part.

    Matrices go to it; embeddings, heads, gains and biases to its AdamW group, as ``muster.torch.param_groups`` says.
    ``param_groups`` of the config replaces that rule: torchtitan's patterns, with ``optimizer_name="NorMuon"`` or
    ``"Muon"`` and the keys of a param group of ``muster.torch``. Groups of torchtitan's own optimizers may be
    mixed with them.

    Under pipeline parallelism each rank builds optimizers for its own stages. The ranks that share a stage are read
    from the device meshes of its parameters.

    Args:
        config: the options; torchtitan's command line fills it in.
        model_parts: the sharded model, or its parts on this rank. All ranks of the world construct it together.

    Raises:
        ValueError: an option that torchtitan or Muster would ignore, or stages that share some of their ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):  # type: ignore[misc,unused-ignore]
        """The value of ``Trainer.Config.optimizer``."""

        optimizer_name: Literal["NorMuon", "Muon"] = "NorMuon"
        """Optimizer of the matrices, if ``param_groups`` is empty."""

        lr: float = 0.02
        """Learning rate of the matrices, and of groups in ``param_groups`` that give none."""

        weight_decay: float = 0.0
        """Weight decay of the matrices, and of groups in ``param_groups`` that give none."""

        adamw_lr: float = 3e-4
        """Learning rate of embeddings, heads, gains and biases."""

        adamw_weight_decay: float = 0.0
        """Weight decay of embeddings, heads, gains and biases."""

        adamw_betas: tuple[float, float] = (0.9, 0.95)
        """Betas of embeddings, heads, gains and biases."""

        include: list[str] = field(default_factory=list)
        """Patterns of names of parameters for the matrix optimizer, as in ``muster.torch.param_groups``."""

        exclude: list[str] = field(default_factory=list)
        """Patterns of names of parameters for AdamW."""

        options: dict[str, Any] = field(default_factory=dict)
        """Any other argument of ``muster.torch.NorMuon``: ``momentum_dtype``, ``scale``, ``timeout``, ..."""

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        _check(config)
        self._config = config
        self._stages = _stage_groups(model_parts)
        self._stage: dist.ProcessGroup | None = None
        super().__init__(config, model_parts=model_parts)

    # The base class calls the next three for one model part after another.

    @staticmethod
    def _build_impl_kwargs(config: Config) -> dict[str, Any]:
        """Without ``fused`` and ``foreach``, which Muster does not read."""
        return {}

    def _build_param_groups(  # type: ignore[override,unused-ignore]
        self, model: nn.Module, param_group_configs: list[ParamGroupConfig], impl_kwargs: dict[str, Any]
    ) -> _Groups:
        """The groups of a model part and their labels for the log, both by the name of their optimizer."""
        self._stage = self._stages[next(i for i, part in enumerate(self.model_parts) if part is model)]
        if param_group_configs:
            groups: _Groups = super()._build_param_groups(model, param_group_configs, impl_kwargs)
            return groups
        config = self._config
        made = param_groups(
            model,
            include=config.include,
            exclude=config.exclude,
            adamw_lr=config.adamw_lr,
            adamw_weight_decay=config.adamw_weight_decay,
            adamw_betas=config.adamw_betas,
            verbose=False,
        )
        out, kinds = [], []
        for group in made:
            members = [(canonical_fqn(name), p) for name, p in group["params"] if p.requires_grad]
            if members:
                names, tensors = map(list, zip(*members))
                out.append({**group, "params": tensors, "param_names": names})
                kinds.append(group.get("algorithm", "matrices"))
        return {config.optimizer_name: out}, {config.optimizer_name: kinds}

    def _resolve_optimizer_factory(  # type: ignore[override,unused-ignore]
        self, name: str
    ) -> Callable[..., torch.optim.Optimizer]:
        """Makes the optimizer of that name for the stage whose groups were built last."""
        if name not in _OPTIMIZERS:
            factory: Callable[..., torch.optim.Optimizer] = super()._resolve_optimizer_factory(name)
            return factory
        config = self._config
        return functools.partial(
            _OPTIMIZERS[name],
            lr=config.lr,
            weight_decay=config.weight_decay,
            process_group=self._stage,
            **config.options,
        )


def _check(config: MusterOptimizers.Config) -> None:
    """Raises ValueError for options that torchtitan or Muster would ignore."""
    if config.implementation == "fused_opt_states_bf16":
        raise ValueError(
            "implementation='fused_opt_states_bf16' is for torch's Adam; for Muster set "
            "options={'momentum_dtype': 'bf16'}"
        )
    for option in ("grad_sync", "replicate_state"):
        if config.options.get(option) is (option == "grad_sync"):
            raise ValueError(
                f"options: {option}={config.options[option]} keeps state outside optimizer.state, and torchtitan loads "
                "only what is in it: momentum would be lost. Leave it out; FSDP divides the state among its ranks"
            )
    if "process_group" in config.options:
        raise ValueError("options: process_group is read from the model parts; leave it out")


def _stage_groups(model_parts: Sequence[nn.Module]) -> list[dist.ProcessGroup | None]:
    """The process group that shares each model part; None for the world. All ranks of the world together."""
    if not dist.is_initialized():
        return [None] * len(model_parts)
    world = tuple(range(dist.get_world_size()))
    mine = [_ranks_of(part) or world for part in model_parts]
    everybody: list[Any] = [None] * len(world)
    dist.all_gather_object(everybody, mine)
    sets = sorted({ranks for parts in everybody for ranks in parts})
    for ranks in sets:
        for other in sets:
            if ranks != other and set(ranks) & set(other):
                raise ValueError(
                    f"model parts are shared by ranks {list(ranks)} and by ranks {list(other)}: Muster needs stages "
                    "that have no rank in common, or the same ranks"
                )
    # new_group is a call of all ranks, with the same ranks in the same order.
    groups = {ranks: None if ranks == world else dist.new_group(list(ranks)) for ranks in sets}
    return [groups[ranks] for ranks in mine]


def _ranks_of(part: nn.Module) -> tuple[int, ...]:
    """The ranks on the device meshes of a model part; none without DTensors."""
    meshes = {p.device_mesh for p in part.parameters() if isinstance(p, DTensor)}
    return tuple(sorted({int(rank) for mesh in meshes for rank in mesh.mesh.flatten()}))
