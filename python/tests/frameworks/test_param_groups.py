"""param_groups on the architectures of transformers: where each parameter goes, and in which orientation.

docs/reference/param-groups.md has the same as tables. To write them again:

    python python/tests/frameworks/test_param_groups.py --write docs/reference/param-groups.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as hf
from architectures import ADAMW, ARCHITECTURES, make
from layouts import values
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.pytorch_utils import Conv1D

import muster.torch
from muster.torch.default_groups import decisions

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "param-groups.md"
MARK = "<!-- Written by python/tests/frameworks/test_param_groups.py --write: do not edit below. -->\n"
OPTIMIZERS = pytest.mark.parametrize("optimizer", [muster.torch.Muon, muster.torch.NorMuon])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_goes_where_it_belongs(architecture: str) -> None:
    chosen = {}
    for group in muster.torch.param_groups(make(architecture), verbose=False):
        keys = {key: group[key] for key in group if key not in ("params", "name")}
        chosen |= {name: ADAMW if keys.get("algorithm") == "adamw" else keys for name, _ in group["params"]}
    where = ARCHITECTURES[architecture].where
    used = {name: next((pattern for pattern in where if fnmatchcase(name, pattern)), "no pattern") for name in chosen}
    assert chosen == {name: where.get(pattern) for name, pattern in used.items()}
    assert set(where) == set(used.values())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_but_the_head_of_a_plain_network_is_a_guess(architecture: str) -> None:
    guesses = [names[0] for names, _, decision in decisions(make(architecture)) if decision.guess]
    assert guesses == {"CNN": ["fc.weight"]}.get(architecture, [])


def test_a_pooling_head_is_no_head() -> None:
    # SigLIP holds its base as `vision_model`: its head was not found, and a layer of `vision_model.head` was taken.
    widths = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**widths, "image_size": 8, "patch_size": 4}
    model = hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=vision, num_labels=3))
    decided = {names[0]: decision for names, _, decision in decisions(model)}
    assert decided["vision_model.head.mlp.fc2.weight"].matrix
    assert not decided["classifier.weight"].matrix and not decided["classifier.weight"].guess


# Orientation: a step of a tensor stored (input, output) is that of the same layer as nn.Linear, to the bit. Squares are
# orthogonalized as they are stored, so that the transpose may differ in the last bit of an update, which is bfloat16.
LAST_BIT = 2.0**-8


def _linear(weight: torch.Tensor, grad: torch.Tensor) -> nn.Linear:
    """A linear layer with these weights, (output, input)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data, layer.weight.grad = weight.detach().clone(), grad.clone()
    return layer


def _step(make_optimizer: Callable[..., Any], model: nn.Module) -> None:
    make_optimizer(muster.torch.param_groups(model, verbose=False), lr=0.1, weight_decay=0.1).step()


def _assert_same(weight: torch.Tensor, expected: torch.Tensor, *, square: bool) -> None:
    difference = (weight - expected).abs().max().item()
    assert difference <= (0.1 * LAST_BIT if square else 0.0)


@OPTIMIZERS
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 32), (32, 8), (16, 16)])
def test_a_step_of_conv1d_is_that_of_a_linear_layer(optimizer: Any, inputs: int, outputs: int) -> None:
    # Conv1D was read as (output, input): 8 inputs and 32 outputs gave a step of norm 1.14, not 2.28.
    torch.manual_seed(0)
    layer = Conv1D(outputs, inputs)
    layer.weight.grad = torch.randn_like(layer.weight)
    twin = _linear(layer.weight.T, layer.weight.grad.T)
    for model in (layer, twin):
        _step(optimizer, model)
    _assert_same(layer.weight.T, twin.weight, square=inputs == outputs)


def test_the_norm_of_a_step_of_conv1d_is_that_of_its_outputs() -> None:
    torch.manual_seed(0)
    layer = Conv1D(32, 8)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn_like(layer.weight)
    muster.torch.Muon(muster.torch.param_groups(layer, verbose=False), lr=1.0).step()
    # sqrt(32 / 8) times singular values that orthogonalization leaves near 1.
    assert 1.8 < torch.linalg.matrix_norm(layer.weight.detach() - before, 2) < 2.4


@OPTIMIZERS
def test_c_attn_of_gpt2_steps_as_three_linear_layers(optimizer: Any) -> None:
    attention = make("GPT-2").transformer.h[0].attn
    weight = attention.c_attn.weight
    weight.grad = torch.randn_like(weight)
    twins = [_linear(w, g) for w, g in zip(weight.T.chunk(3), weight.grad.T.chunk(3))]
    for model in (attention, nn.ModuleList(twins)):
        _step(optimizer, model)
    _assert_same(weight.T, torch.cat([twin.weight for twin in twins]), square=True)


def _experts(kind: type[nn.Module]) -> nn.Module:
    widths = {"hidden_size": 8, "intermediate_size": 20, "num_local_experts": 3}
    config = {
        GptOssExperts: hf.GptOssConfig,
        Llama4TextExperts: hf.Llama4TextConfig,
        MixtralExperts: hf.MixtralConfig,
    }[kind](**widths)
    experts = kind(config)
    torch.manual_seed(0)
    for parameter in experts.parameters():
        parameter.data = torch.randn_like(parameter)
        parameter.grad = torch.randn_like(parameter)
    return experts


@OPTIMIZERS
@pytest.mark.parametrize(
    ("kind", "transposed", "layers"),
    [(GptOssExperts, True, 1), (Llama4TextExperts, True, 2), (MixtralExperts, False, 2)],
)
def test_a_step_of_experts_is_that_of_their_layers(
    optimizer: Any, kind: type[nn.Module], transposed: bool, layers: int
) -> None:
    # Experts of GPT-OSS and Llama 4, (experts, in, out), were read as (out, in); fused gate and up as one matrix.
    experts = _experts(kind)
    twins = {}
    for name, blocks in (("gate_up_proj", layers), ("down_proj", 1)):
        stack = getattr(experts, name)
        pairs = [(w.T, g.T) if transposed else (w, g) for w, g in zip(stack.detach(), stack.grad)]
        twins[name] = [_linear(*block) for w, g in pairs for block in zip(w.chunk(blocks), g.chunk(blocks))]
    for model in (experts, nn.ModuleList(twin for each in twins.values() for twin in each)):
        _step(optimizer, model)
    for name, each in twins.items():
        stack = getattr(experts, name)
        stepped = torch.cat([w.T if transposed else w for w in stack])
        assert torch.equal(stepped, torch.cat([twin.weight for twin in each])), name


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_a_frozen_base_model_has_no_state(dtype: torch.dtype) -> None:
    # The optimizer refused the base model, or kept state for it.
    torch.manual_seed(0)
    model = hf.BertForSequenceClassification(make("BERT").config)
    for parameter in [*model.bert.embeddings.parameters(), *model.bert.encoder.parameters()]:
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.detach().clone() for parameter in trained]
    optimizer.step()
    assert len(trained) == 4 and set(optimizer.state) == set(trained)
    assert not any(torch.equal(parameter, was) for parameter, was in zip(trained, before))


# Sharded models.


def _set_gradients(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        whole = values(name, 0, parameter.shape).reshape(parameter.shape)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.grad = whole


def _same_when_sharded(rank: int, ranks: int, architecture: str) -> None:
    plain, sharded = make(architecture), make(architecture)
    mesh = init_device_mesh("cpu", (ranks,))
    for module in reversed(list(sharded.modules())):  # a module takes what is left of its parameters
        if module is not sharded and any(True for _ in module.parameters(recurse=False)):
            fully_shard(module, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    ways = [[(names, decision) for names, _, decision in decisions(model)] for model in (plain, sharded)]
    assert ways[0] == ways[1]
    alone = [dist.new_group([r]) for r in range(ranks)][rank]
    for model, group in ((plain, alone), (sharded, None)):
        _set_gradients(model)
        muster.torch.NorMuon(muster.torch.param_groups(model, verbose=False), process_group=group).step()
    for (name, parameter), weight in zip(sharded.named_parameters(), plain.parameters()):
        assert torch.equal(parameter.full_tensor(), weight), name


@pytest.mark.parametrize("architecture", ["Llama 4", "GPT-OSS", "Phi-3", "CNN"])
def test_a_sharded_model_steps_as_the_plain_one(architecture: str) -> None:
    run_ranks(2, _same_when_sharded, architecture)


# The document.


def _decided(parameter: torch.Tensor, names: list[str], decision: Any) -> str:
    keys = ", ".join(f"`{key}={value}`" for key, value in decision.layout.items()) if decision.matrix else ""
    by = ("guess: " if decision.guess else "") + decision.rule + ("; tied" if len(names) > 1 else "")
    return f"{tuple(parameter.shape)} | {'matrix' if decision.matrix else 'AdamW'} | {keys} | {by}"


def _rows(model: nn.Module) -> list[str]:
    """One row per kind of parameter; layers side by side with equal decisions share one, and so do all vectors."""
    layers: dict[tuple[str, str, str], dict[str, bool]] = {}
    vectors = 0
    for names, parameter, decision in decisions(model):
        vectors += decision.rule == "vector"
        if decision.rule == "vector":
            continue
        around, layer, leaf = ("..", *re.sub(r"(?<=\.)\d+(?=\.)", "*", names[0]).rsplit(".", 2))[-3:]
        around, layer, leaf = (
            (around, layer, f".{leaf}") if leaf in ("weight", "bias") else (f"{around}.{layer}", leaf, "")
        )
        layers.setdefault((around.strip("."), leaf, _decided(parameter, names, decision)), {})[layer] = True
    rows = []
    for (around, leaf, decided), members in layers.items():
        layer = next(iter(members)) if len(members) == 1 else "{" + ", ".join(members) + "}"
        rows.append(f"| `{around}{'.' * bool(around)}{layer}{leaf}` | {decided} |\n")
    return rows + ([f"| {vectors} gains, biases and others | | AdamW | | vector |\n"] if vectors else [])


def _tables() -> str:
    out = [MARK]
    for architecture in ARCHITECTURES:
        model = make(architecture)
        out.append(f"\n### {architecture}\n\n`{type(model).__name__.lstrip('_')}`\n\n")
        out.append("| parameter | shape | algorithm | keys of its group | decided by |\n|---|---|---|---|---|\n")
        out += _rows(model)
    return "".join(out)


def test_the_document_has_these_tables() -> None:
    written = DOCUMENT.read_text()
    assert written[written.index(MARK) :] == _tables(), f"run: python {Path(__file__).name} --write {DOCUMENT.name}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    path = parser.parse_args().write
    path.write_text(path.read_text().partition(MARK)[0] + _tables())
