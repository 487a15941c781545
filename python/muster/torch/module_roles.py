"""Finds vectors, routers and heads, which go to AdamW, and guesses where no class decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .module_rules import Decision, Site, by_class, class_name, is_a

#: Everything in a module of these classes goes to AdamW.
_ROUTERS = (("transformers", "*Router *TopKGating *MoEV1Gate"), ("torchtitan", "*Router"))
#: Names of linear layers that end a model. In a repeated block a layer of such a name is no head.
HEADS = {
    "head", "lm_head", "mlm_head", "cls_head", "classification_head", "prediction_head", "value_head", "output_head",
    "out_head", "head_out", "lm_out", "fc_out", "embed_out", "unembed", "unembedding", "readout", "output",
    "output_layer", "fc", "classifier", "score", "qa_outputs", "seq_relationship", "logits", "to_logits", "lm_logits",
}  # fmt: skip
#: Modules whose last linear layer is a head.
_CLASSIFIERS = {"classifier"}
#: The same, unless the model declares its heads: modules of these names may also transform features.
_AROUND_HEADS = {"head", "lm_head"}


class Roles:
    """Decides about the parameters of one model."""

    def __init__(self, model: nn.Module) -> None:
        modules: list[Any] = list(model.modules())
        tables = [m for m in modules if is_a(m, "torch.", "Embedding EmbeddingBag")]
        linear = [m for m in modules if is_a(m, "torch.", "Linear")]
        self._tables = _weight_shapes(tables)
        self._table_shapes = set(self._tables.values())
        self._linear_shapes = Counter(_weight_shapes(linear).values())
        self._heads = dict(head for m in modules for head in _declared_heads(m))

    def decide(self, site: Site) -> Decision:
        """Decides by shape if there is no matrix, then by role and class, and last by a guess."""
        if len(site.shape) < 2:
            return Decision(False, "vector")
        decision = by_class(site) or _without_rule(site)
        if sum(size > 1 for size in site.shape) < 2:
            return replace(decision, matrix=False, rule="vector", guess=False)
        if any(is_a(module, *classes) for module in site.path for classes in _ROUTERS):
            return replace(decision, matrix=False, rule="router", guess=False)
        if decision.matrix and (head := self._heads.get(id(site.module))):
            return replace(decision, matrix=False, rule=head, guess=False)
        if decision.matrix and (guess := self._guess(site)):
            return replace(decision, matrix=False, rule=guess, guess=True)
        return decision

    def is_head(self, site: Site) -> bool:
        """True for the weight of a linear layer that is declared a head, tied to an embedding, or looks like a head."""
        if not is_a(site.module, "torch.", "Linear") or site.leaf != "weight":
            return False
        known = id(site.module) in self._heads or id(site.parameter) in self._tables
        return known or self._has_table_shape(site) or self._head_name(site) is not None

    def _guess(self, site: Site) -> str | None:
        """A router or a head by its shape or its name, or None."""
        for module in site.path:
            if class_name(module).endswith("Router"):
                return f"a router: in a {class_name(module)}"
        if any(name.endswith("router") for name in site.name.split(".")[:-1]):
            return f"a router: {site.name!r}"
        if is_a(site.module, "torch.", "Conv1d Conv2d Conv3d") and (name := self._head_name(site)):
            return f"a head: a convolution called {name!r}"
        if not is_a(site.module, "torch.", "Linear"):
            return None
        experts = _sibling_experts(site)
        if experts == site.shape[0] or (site.layer == "gate" and experts is not None):
            return f"a router: a Linear called {site.layer!r}" + " next to experts" * (experts is not None)
        if self._has_table_shape(site):
            return "a head: the only Linear of an embedding's shape"
        name = self._head_name(site)
        return name and f"a head: a Linear called {name!r}"

    def _has_table_shape(self, site: Site) -> bool:
        alone = self._linear_shapes[site.shape] == 1 and not _in_layers(site)
        return site.shape in self._table_shapes and alone and not self._heads

    def _head_name(self, site: Site) -> str | None:
        """The name that makes a linear layer a head, or None."""
        names = site.name.split(".")[:-1]
        if site.layer in HEADS and not any(map(str.isdigit, names)):
            return site.layer
        around = _CLASSIFIERS if self._heads else _CLASSIFIERS | _AROUND_HEADS
        for name, module in zip(names, site.path[1:-1]):
            if name.isdigit():
                return None
            if name in around:
                last = [m for m in module.modules() if is_a(m, "torch.", "Linear Conv1d Conv2d Conv3d")][-1]
                return f"{name}.{site.layer}" if last is site.module else None
        return None


def _weight_shapes(modules: list[Any]) -> dict[int, tuple[int, ...]]:
    """By the id of the weight, so that a tied one counts once. A subclass, or one that computes it, has none."""
    weights = [weight for m in modules if isinstance(weight := m._parameters.get("weight"), torch.Tensor)]
    return {id(weight): tuple(weight.shape) for weight in weights}


def _declared_heads(module: Any) -> Iterator[tuple[int, str]]:
    """Linear layers that a model of transformers calls its output embedding, or that have one output per label."""
    if not is_a(module, "transformers", "PreTrainedModel"):
        return
    output = module.get_output_embeddings()
    if output is not None:
        yield id(output), "output embedding"
    base = getattr(module, module.base_model_prefix, None)
    inner = {id(m) for m in base.modules()} if isinstance(base, nn.Module) else set()
    for m in module.modules() if inner else module.children():  # a few models call their base by another name
        if id(m) not in inner and is_a(m, "torch.", "Linear") and m.out_features == module.config.num_labels:
            yield id(m), "one output per label"


def _sibling_experts(site: Site) -> int | None:
    """How many experts the module around this one holds under the name ``experts``; 0 if it does not say."""
    experts = getattr(site.owner, "experts", None)
    if not isinstance(experts, nn.Module):
        return None
    if isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
        return len(experts)
    return max((p.shape[0] for p in experts.parameters() if p.dim() == 3), default=0)


def _in_layers(site: Site) -> bool:
    return any(isinstance(module, nn.ModuleList) for module in site.path)


def _without_rule(site: Site) -> Decision:
    """A parameter of a class that no rule knows."""
    module, name = site.module, class_name(site.module)
    features = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if site.shape == features:
        return Decision(True, f"{name}: out_features x in_features")
    if site.shape == features[::-1]:
        return Decision(True, f"{name}: in_features x out_features", {"output_dim": 1})
    if "Expert" in name and len(site.shape) == 3:
        return Decision(True, f"{name}: taken for experts of (out, in)", guess=True)
    return Decision(False, f"no rule for {name}", guess=True)
