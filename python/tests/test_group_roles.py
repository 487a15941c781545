"""param_groups: heads and routers, which go to AdamW, found by shape and by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chosen_groups import ADAMW, Experts, Moe, chosen, matrices
from torch import nn

import muster.torch
from muster.torch.module_roles import HEADS

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "param-groups.md"
NO_HEAD = "muster: no output head was found; if the last linear layer is one, give exclude="


@pytest.mark.parametrize("experts", [Experts(), nn.ModuleList(nn.Linear(8, 16) for _ in range(4))])
def test_a_linear_with_one_output_per_expert_is_a_router(experts: nn.Module) -> None:
    decided = chosen(nn.ModuleDict({"moe": Moe(nn.Linear(8, 4), experts)}))
    assert decided["moe.choose.weight"] == ADAMW
    assert {name for name, keys in decided.items() if keys == {}} == {
        f"moe.experts.{name}" for name in ["up", *(f"{n}.weight" for n in range(4))]
    } & decided.keys()


@pytest.mark.parametrize("head", sorted(HEADS))
def test_heads_are_guessed_by_name(head: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A head called `score` went to Muon.
    model = nn.ModuleDict({"body": nn.Linear(8, 8), head: nn.Linear(8, 5)})
    assert matrices(model) == {"body.weight": {}}
    muster.torch.param_groups(model)
    assert f"guess: a head: a Linear called {head!r}; {head}.weight" in capsys.readouterr().out


def test_names_of_heads_within_layers_are_not_heads() -> None:
    block = nn.ModuleDict({"attention": nn.ModuleDict({"output": nn.Linear(8, 8)}), "fc": nn.Linear(8, 8)})
    model = nn.ModuleDict({"layers": nn.ModuleList([block]), "classifier": nn.Sequential(*[nn.Linear(8, 8)] * 1)})
    model["classifier"].append(nn.Linear(8, 8))
    assert set(matrices(model)) == {"layers.0.attention.output.weight", "layers.0.fc.weight", "classifier.0.weight"}


@pytest.mark.parametrize("head", ["fc_out", "embed_out", "lm_out", "readout", "head_out"])
def test_names_of_heads_include(head: str) -> None:
    # These went to the matrix optimizer by rule.
    assert head in HEADS


def test_the_document_lists_the_names_of_heads() -> None:
    assert all(f"`{head}`" in DOCUMENT.read_text() for head in HEADS)


@pytest.mark.parametrize("name", ["out", "proj_out", "out_proj", "linear", "decoder"])
def test_names_that_blocks_use_are_no_heads(name: str) -> None:
    assert set(matrices(nn.ModuleDict({"body": nn.Linear(8, 8), name: nn.Linear(8, 5)}))) == {
        "body.weight",
        f"{name}.weight",
    }


@pytest.mark.parametrize("blocks", [nn.ModuleList, lambda b: nn.Sequential(*b), lambda b: nn.ModuleDict({"0": b[0]})])
def test_a_repeated_block_has_no_heads(blocks: Any) -> None:
    # blocks.0.classifier and blocks.0.score went to AdamW.
    block = nn.ModuleDict(
        {
            "classifier": nn.Linear(8, 8),
            "score": nn.Linear(8, 8),
            "fc": nn.Linear(8, 8),
            "head": nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        }
    )
    model = nn.ModuleDict({"blocks": blocks([block]), "readout": nn.Linear(8, 3)})
    weights = {name for name, _ in model.named_parameters() if name.endswith("weight")}
    assert set(matrices(model)) == weights - {"readout.weight"}


def _says_that_there_is_no_head(model: nn.Module, capsys: pytest.CaptureFixture[str], **arguments: Any) -> bool:
    capsys.readouterr()
    muster.torch.param_groups(model, **arguments)
    return NO_HEAD in capsys.readouterr().out.splitlines()


def test_a_model_without_a_known_head_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    # A last layer called `out` went to the matrix optimizer, and nothing said that it may be a head.
    def make(head: str) -> nn.Module:
        return nn.ModuleDict({"words": nn.Embedding(11, 4), "body": nn.Linear(8, 8), head: nn.Linear(8, 5)})

    assert _says_that_there_is_no_head(make("out"), capsys)
    assert _says_that_there_is_no_head(make("out"), capsys, exclude="words.*")
    assert not _says_that_there_is_no_head(make("out"), capsys, exclude="out.*")
    assert not _says_that_there_is_no_head(make("fc_out"), capsys)
    assert not _says_that_there_is_no_head(make("fc_out"), capsys, include="fc_out.weight")
    frozen = make("fc_out")
    frozen["fc_out"].requires_grad_(False)
    assert not _says_that_there_is_no_head(frozen, capsys)
    tied = nn.ModuleDict({"words": nn.Embedding(5, 8), "body": nn.Linear(8, 5), "out": nn.Linear(8, 5)})
    tied["out"].weight = tied["words"].weight
    assert not _says_that_there_is_no_head(tied, capsys)
    assert not _says_that_there_is_no_head(nn.Conv2d(3, 4, 3), capsys)


class _Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.classifier = nn.Conv2d(8, 4, 1)
        self.router = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def test_convolutions_that_are_heads_and_routers_of_several_layers_go_to_adamw() -> None:
    groups = muster.torch.param_groups(_Segmenter(), verbose=False)
    matrices = [name for group in groups if group.get("algorithm") != "adamw" for name, _ in group["params"]]
    assert matrices == ["body.weight"]
