"""Numbers that the engine cannot hold are refused in one line that names them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import muster.torch


def _refusal(**options) -> str:
    weight = nn.Parameter(torch.ones(6, 4))
    with pytest.raises(ValueError) as caught:
        optimizer = muster.torch.NorMuon([("w", weight)], **options)
        weight.grad = torch.ones(6, 4)
        optimizer.step()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200
    return text


@pytest.mark.parametrize(
    "options",
    [
        {"every": 2**64},
        {"every": 0},
        {"every": 10**5000},
        {"every": "often"},
        {"seed": -1},
        {"seed": 2**63},
        {"waves": 2**40},
        {"waves": -1},
        {"waves": 1.5},
        {"scratch_mib": 2**50},
        {"threads": 2**40},
        {"threads": -1},
        {"output_dim": 2**40},
        {"split_rows": [2**64]},
        {"split_columns": [-(2**64)]},
        {"view": [2**64, 1]},
        {"split_rows": [2.7, 3.3]},
        {"output_dim": 0.5},
    ],
)
def test_it_is_named_in_one_line(options: dict) -> None:
    """The text of the binding's TypeError, with its signatures in several lines, was the message."""
    (name,) = options
    assert name in _refusal(**options)


def test_a_seed_of_numpy_counts_like_one_of_python() -> None:
    """It was taken, and then stood for seed 0."""
    numpy = pytest.importorskip("numpy")
    weights = []
    for seed in (7, numpy.int64(7), 0):
        weight = nn.Parameter(torch.linspace(-1, 1, 512).bfloat16())
        optimizer = muster.torch.NorMuon([("w", weight)], algorithm="adamw", bf16_weights="stochastic", seed=seed)
        weight.grad = torch.ones(512, dtype=torch.bfloat16)
        optimizer.step()
        weights.append(weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_numbers_at_the_limits_are_taken() -> None:
    weight = nn.Parameter(torch.ones(6, 4))
    optimizer = muster.torch.NorMuon([("w", weight)], every=2**63 - 1, seed=2**63 - 1, waves=1, threads=1)
    weight.grad = torch.ones(6, 4)
    optimizer.step()
    assert torch.equal(weight, torch.ones(6, 4))
