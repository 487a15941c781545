"""Lightning under DDP: all ranks take part in a checkpoint, rank 0 has the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from launch import as_torchrun
from ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader

import muster.torch

EPOCH = 4  # steps; a checkpoint in the middle of an epoch needs a data loader that can be resumed


class _Module(lightning.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 13))
        self.options = options
        self.losses: list[float] = []
        self.logged: list[int] = []

    def training_step(self, tokens: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(tokens), (tokens * 5 + 1) % 13)
        self.losses.append(loss.item())
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.optimizers().log_stats(lambda values, step: self.logged.append(step), self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = muster.torch.param_groups(self.layers, adamw_lr=0.01, verbose=False)
        return muster.torch.NorMuon(groups, lr=0.02, **self.options)


def _run(folder: str, epochs: int, checkpoint: str | None = None, **options: Any) -> tuple[_Module, lightning.Trainer]:
    module = _Module(**options)
    tokens = torch.randint(0, 13, (16 * EPOCH,), generator=torch.Generator().manual_seed(0))
    trainer = lightning.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(tokens, batch_size=8), ckpt_path=checkpoint)
    return module, trainer


def _resumes(rank: int, ranks: int, folder: str, options: dict[str, Any]) -> None:
    as_torchrun(rank, ranks)
    whole, _ = _run(folder, 2, **options)
    assert len(whole.losses) == 2 * EPOCH and whole.losses[-1] < whole.losses[0]
    first, trainer = _run(folder, 1, **options)
    trainer.save_checkpoint(f"{folder}/saved.ckpt")
    second, _ = _run(folder, 2, f"{folder}/saved.ckpt", **options)
    assert first.losses + second.losses == whole.losses
    for (name, a), b in zip(whole.named_parameters(), second.parameters()):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("options", [{}, {"replicate_state": False}])
def test_a_run_that_was_resumed_ends_with_the_same_bits(tmp_path: Path, options: dict[str, Any]) -> None:
    run_ranks(2, _resumes, str(tmp_path), options)
    state = torch.load(tmp_path / "saved.ckpt", weights_only=False)["optimizer_states"][0]["state"]
    assert sum(tensor.numel() for tensor in state[0].values()) >= 17 * 8


def _logs(rank: int, ranks: int, folder: str) -> list[int]:
    as_torchrun(rank, ranks)
    module, _ = _run(folder, 1, monitor_every=2)
    return module.logged


def test_statistics_are_written_from_a_hook(tmp_path: Path) -> None:
    assert run_ranks(2, _logs, str(tmp_path)) == [[2, 4], [2, 4]]
