"""Hugging Face's Trainer under DDP: rank 0 alone calls `state_dict()`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from launch import as_torchrun
from ranks import run_ranks
from torch import nn
from torch.distributed.tensor import DTensor

import muster.torch
from muster.integrations.transformers import ConsolidateState, LogStats, MuonFactory, NorMuonFactory, from_arguments

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


def _arguments(folder: str, **options: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        save_steps=SAVED,
        logging_steps=1,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        **{"learning_rate": 0.02, "use_cpu": True, **options},
    )


def test_training_arguments_reach_the_groups_that_they_are_for(tmp_path: Path) -> None:
    arguments = _arguments(str(tmp_path), weight_decay=0.1, adam_beta1=0.7, adam_beta2=0.8, adam_epsilon=1e-6)
    factory, options = from_arguments(arguments, adamw_lr=0.003, verbose=False, momentum=0.9)
    model = _model()
    model.transformer.h[0].attn.c_proj.weight.requires_grad_(False)
    optimizer = factory()(model, **options)
    assert type(optimizer) is muster.torch.NorMuon
    *matrices, adamw = optimizer.param_groups
    assert adamw["algorithm"] == "adamw"
    assert (adamw["lr"], adamw["weight_decay"], adamw["betas"], adamw["eps"]) == (0.003, 0.0, (0.7, 0.8), 1e-6)
    for group in matrices:
        assert group["algorithm"] == "normuon"
        assert (group["lr"], group["weight_decay"], group["momentum"], group["betas"]) == (0.02, 0.1, 0.9, (0.9, 0.95))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(optimizer.names) == trained


def test_the_default_rate_of_training_arguments_is_warned_of(tmp_path: Path) -> None:
    arguments = _arguments(str(tmp_path), learning_rate=5e-5)
    with pytest.warns(UserWarning, match="learning_rate is 5e-05, the default of TrainingArguments"):
        assert from_arguments(arguments, MuonFactory)[1]["lr"] == 5e-5


def test_a_factory_without_a_rate_says_who_gives_one() -> None:
    with pytest.raises(ValueError, match="from_arguments"):
        NorMuonFactory()(_model())
    assert type(MuonFactory()(_model(), lr=0.02, verbose=False)) is muster.torch.Muon


def test_patterns_override_the_rules(tmp_path: Path) -> None:
    patterns = {"include": {"transformer.wpe.weight": {}}, "exclude": "*.c_proj.weight"}
    factory, options = from_arguments(_arguments(str(tmp_path)), MuonFactory, verbose=False, **patterns)
    optimizer = factory()(_model(), **options)
    algorithms = {name: group["algorithm"] for group in optimizer.param_groups for name in group["param_names"]}
    assert algorithms["transformer.wpe.weight"] == "muon"
    assert algorithms["transformer.h.0.attn.c_proj.weight"] == "adamw"
    assert algorithms["transformer.h.0.attn.c_attn.weight"] == "muon"


@pytest.mark.parametrize("name, meant", [("adam_lr", "adamw_lr"), ("excludes", "exclude"), ("momentm", "momentum")])
def test_an_unknown_argument_is_refused_at_once(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'; did you mean '{meant}'"):
        from_arguments(_arguments(str(tmp_path)), **{name: 0.1})
    with pytest.raises(ValueError, match=f"'{name}'; did you mean '{meant}'"):
        NorMuonFactory()(_model(), lr=0.02, **{name: 0.1})


def test_an_optimizer_in_place_of_a_factory_is_refused(tmp_path: Path) -> None:
    for optimizer, factory in ((muster.torch.Muon, "MuonFactory"), (muster.torch.NorMuon, "NorMuonFactory")):
        with pytest.raises(TypeError, match=f"the class {factory} of muster.integrations.transformers"):
            from_arguments(_arguments(str(tmp_path)), optimizer)


def _logs(rank: int, ranks: int, folder: str) -> tuple[list[int], list[dict[str, float]], list[dict[str, float]]]:
    """Steps that a function was called for, and what the Trainer logged: statistics, and losses."""
    as_torchrun(rank, ranks)
    arguments = _arguments(folder, save_strategy="no")
    optimizer = from_arguments(arguments, verbose=False, monitor_every=2)
    trainer = transformers.Trainer(
        _model(), arguments, train_dataset=_data(), optimizer_cls_and_kwargs=optimizer, callbacks=[]
    )
    steps: list[int] = []
    trainer.add_callback(LogStats(trainer))
    trainer.add_callback(LogStats(lambda values, step: steps.append(step)))
    trainer.train()
    history = trainer.state.log_history
    return steps, [e for e in history if "optimizer/grad_norm" in e], [e for e in history if "loss" in e]


def test_statistics_go_to_the_log_of_the_trainer_or_to_a_writer(tmp_path: Path) -> None:
    for rank, (steps, statistics, losses) in enumerate(run_ranks(2, _logs, str(tmp_path))):
        assert steps == ([] if rank else [2, 4, 6, 8])
        assert [entry["step"] for entry in statistics] == [2, 4, 6, 8]
        assert "optimizer/update_rms/transformer.h.0.mlp.c_fc.weight" in statistics[0]
        assert statistics[0]["optimizer/grad_norm"] <= 1.0001  # as max_grad_norm left it
        assert len(losses) == STEPS


def test_statistics_that_nothing_collects_are_warned_of(tmp_path: Path) -> None:
    callback, arguments = LogStats(print), _arguments(str(tmp_path))
    ours = MuonFactory()(_model(), lr=0.02, verbose=False)
    with pytest.warns(UserWarning, match="monitor_every is 0"):
        callback.on_train_begin(arguments, None, None, optimizer=ours)
    with pytest.raises(TypeError, match="AdamW is no optimizer of muster.torch"):
        callback.on_train_begin(arguments, None, None, optimizer=torch.optim.AdamW(_model().parameters()))


def _bare_class(rank: int, ranks: int, folder: str) -> str:
    as_torchrun(rank, ranks)
    optimizer = (muster.torch.NorMuon, {"lr": 0.02})
    trainer = transformers.Trainer(
        _model(), _arguments(folder), train_dataset=_data(), optimizer_cls_and_kwargs=optimizer
    )
    with pytest.raises(ValueError) as raised:
        trainer.train()
    return str(raised.value)


def test_the_bare_class_is_refused_in_favour_of_the_factory(tmp_path: Path) -> None:
    for message in run_ranks(2, _bare_class, str(tmp_path)):
        assert "muster.integrations.transformers.NorMuonFactory" in message and "\n" not in message


def _factory_run(folder: str, resume: str | None, strategy: str) -> tuple[list[float], list[torch.Tensor]]:
    model = _model()
    arguments = _arguments(
        folder,
        eval_strategy="steps" if strategy == "best" else "no",
        eval_steps=SAVED,
        save_strategy=strategy,
        metric_for_best_model="loss",
        num_train_epochs=2,
        per_device_eval_batch_size=4,
    )
    options = from_arguments(arguments, adamw_lr=0.01, verbose=False, replicate_state=False)
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=_data()[: SAVED * 2 * 4],
        eval_dataset=_data()[:8],
        optimizer_cls_and_kwargs=options,
        callbacks=[ConsolidateState()],
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, [weight.detach().clone() for weight in model.parameters()]


def _consolidates(rank: int, ranks: int, folder: str, strategy: str) -> None:
    as_torchrun(rank, ranks)
    losses, weights = _factory_run(folder, None, strategy)
    assert len(losses) == STEPS and losses[-1] < losses[0]
    resumed, same_weights = _factory_run(folder, f"{folder}/checkpoint-{SAVED}", strategy)
    assert resumed == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights))


@pytest.mark.parametrize("strategy", ["steps", "epoch", "best"])
def test_divided_state_is_saved_by_rank_0_and_resumed(tmp_path: Path, strategy: str) -> None:
    run_ranks(2, _consolidates, str(tmp_path), strategy)
    state = torch.load(tmp_path / f"checkpoint-{SAVED}" / "optimizer.pt", weights_only=True)["state"]
    assert all("momentum" in entries or "first" in entries for entries in state.values())


def _sharded_run(folder: str, resume: bool) -> list[float]:
    fsdp = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    arguments = _arguments(folder, fsdp=True, fsdp_config=fsdp, use_cpu=False)
    options = from_arguments(arguments, adamw_lr=0.01, verbose=False)
    trainer = transformers.Trainer(_model(), arguments, train_dataset=_data(), optimizer_cls_and_kwargs=options)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{SAVED}" if resume else None)
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _resumes_sharded(rank: int, ranks: int, folder: str) -> None:
    as_torchrun(rank, ranks)
    # accelerate takes DDP on the CPU, whatever the arguments; FSDP2 itself runs there.
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    with mock.patch.object(PartialState, "_prepare_backend", lambda *_: ("gloo", DistributedType.MULTI_GPU)):
        losses = _sharded_run(folder, resume=False)
        assert len(losses) == STEPS and losses[-1] < losses[0]
        assert _sharded_run(folder, resume=True) == losses


def test_under_fsdp2_a_run_is_resumed_with_the_same_losses(tmp_path: Path) -> None:
    run_ranks(2, _resumes_sharded, str(tmp_path))
