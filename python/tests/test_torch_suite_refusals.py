"""Input that torch.optim.Muon refuses, and that is refused here as well, after PyTorch's own tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_torch_suite import BOTH, Muon, _weights
from torch import nn


@BOTH
def test_parameters_must_be_in_a_list(muon: Muon) -> None:
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        muon(_weights()[0])


@BOTH
def test_a_parameter_may_be_given_twice_in_a_group_with_a_warning(muon: Muon) -> None:
    weight = _weights()[0]
    with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
        muon([weight, weight])


@BOTH
def test_a_parameter_may_not_be_in_two_groups(muon: Muon) -> None:
    weight = _weights()[0]
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        muon([{"params": [weight]}, {"params": [weight]}])


@BOTH
def test_all_parameters_have_names_or_none(muon: Muon) -> None:
    a, b = _weights()
    with pytest.raises(ValueError, match="all optimizer params should be with/without names"):
        muon([("weight", a), b])
    with pytest.raises(ValueError, match="all optimizer param groups should be with/without names"):
        muon([{"params": [a]}, {"params": [("weight", b)]}])


@BOTH
@pytest.mark.parametrize(
    "options", [{"lr": torch.tensor([0.1, 0.1])}, {"lr": -0.1}, {"momentum": -0.1}, {"weight_decay": -0.1}]
)
def test_hyperparameters_that_make_no_sense_are_refused(muon: Muon, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"lr|[lL]earning rate|momentum|weight.decay"):
        muon(_weights(), **options)


@BOTH
@pytest.mark.parametrize("shape", [(4,), (2, 3, 4, 4)])
def test_shapes_that_are_no_matrix_are_refused_when_the_optimizer_is_made(muon: Muon, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"2D|matrix|flatten"):
        muon([nn.Parameter(torch.ones(shape))])


@BOTH
def test_complex_parameters_and_sparse_gradients_are_refused(muon: Muon) -> None:
    weight = torch.ones(3, 2, dtype=torch.complex64)
    weight.grad = torch.ones_like(weight)
    with pytest.raises((RuntimeError, ValueError, TypeError), match="complex"):
        muon([weight]).step()
    weight = torch.ones(3, 2)
    weight.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises((RuntimeError, ValueError), match="sparse|strided"):
        muon([weight]).step()
    assert torch.equal(weight, torch.ones(3, 2))
