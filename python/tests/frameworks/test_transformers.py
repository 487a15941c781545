"""Hugging Face's Trainer under DDP: rank 0 alone calls `state_dict()`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from launch import as_torchrun
from ranks import run_ranks
from torch import nn

import muster.torch

SAVED, STEPS = 4, 8


def _model() -> nn.Module:
    torch.manual_seed(0)
    none = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, **none)
    return transformers.GPT2LMHeadModel(config)


def _optimizer(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    groups = muster.torch.param_groups(model, adamw_lr=0.01, verbose=False)
    return muster.torch.NorMuon(groups, lr=0.02, **options)


def _data() -> list[dict[str, torch.Tensor]]:
    """Texts that count, from any number on."""
    rows = [(torch.arange(16) + first) % 32 for first in range(64)]
    return [{"input_ids": row, "labels": row} for row in rows]


def _run(folder: str, resume: bool, **options: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses as the Trainer logs them, and weights after STEPS steps, of a model made for this run."""
    model = _model()
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=STEPS,
        save_steps=SAVED,
        logging_steps=1,
        per_device_train_batch_size=2,
        learning_rate=0.02,
        report_to=[],
        disable_tqdm=True,
    )
    optimizers = (_optimizer(model, **options), None)
    trainer = transformers.Trainer(model, arguments, train_dataset=_data(), optimizers=optimizers)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{SAVED}" if resume else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _resumes(rank: int, ranks: int, folder: str) -> None:
    as_torchrun(rank, ranks)
    losses, weights = _run(folder, resume=False, timeout=timedelta(seconds=30))
    assert losses[-1] < losses[0]
    more_losses, same_weights = _run(folder, resume=True)
    assert more_losses == losses
    for name, weight in weights.items():
        assert torch.equal(same_weights[name], weight), name


def test_a_run_that_was_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    run_ranks(2, _resumes, str(tmp_path))
    state = torch.load(tmp_path / f"checkpoint-{SAVED}" / "optimizer.pt", weights_only=True)
    assert len(state["state"]) == len(list(_model().parameters()))


def _saves_without_replicas(rank: int, ranks: int, folder: str) -> str:
    """The error of this rank; rank 1's only says that its connection was closed."""
    as_torchrun(rank, ranks)
    with pytest.raises(RuntimeError) as raised:
        _run(folder, resume=False, replicate_state=False, timeout=timedelta(seconds=5))
    return str(raised.value)


def test_without_replicated_state_the_error_names_the_remedy(tmp_path: Path) -> None:
    message, _ = run_ranks(2, _saves_without_replicas, str(tmp_path))
    assert "replicate_state=True" in message
    assert "consolidate_state_dict" in message
