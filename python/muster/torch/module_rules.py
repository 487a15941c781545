"""How a tensor is read as matrices: a table of rules by the class of the module that holds it.

A class is matched by its package and its name, in the whole method resolution order. So transformers need not be
installed, a subclass follows the rule of its base, and so do the classes that FSDP2 makes (``FSDPLinear``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Decision:
    """Where a parameter goes, and the rule that says so."""

    matrix: bool  # True: the matrix optimizer. False: AdamW
    rule: str  # what decided, in words
    layout: Mapping[str, Any] = field(default_factory=dict)  # keys of a param group: how the tensor is read as matrices
    guess: bool = False  # True if a name or a shape decided, or nothing did


@dataclass(frozen=True)
class Site:
    """A parameter, and where the model holds it. A tied parameter has several sites."""

    name: str  # dotted, without the prefixes of wrappers
    parameter: torch.Tensor
    path: tuple[nn.Module, ...]  # from the model down to the module that holds the parameter; wrappers left out

    @property
    def module(self) -> Any:
        """The module that holds the parameter. Any: rules read the attributes of its class."""
        return self.path[-1]

    @property
    def owner(self) -> Any:
        """The module around the one that holds the parameter."""
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)

    @property
    def leaf(self) -> str:
        """``weight`` of ``layers.0.mlp.up.weight``."""
        return self.name.split(".")[-1]

    @property
    def layer(self) -> str:
        """``up`` of ``layers.0.mlp.up.weight``."""
        return self.name.split(".")[-2] if "." in self.name else ""


def is_a(module: Any, package: str, names: str) -> bool:
    """True if the module's class, or a base of it, is from the package and has one of the names (with wildcards)."""
    kind: Any = type(module)
    return _is_a(kind, package, names)


@lru_cache(maxsize=8192)
def _is_a(kind: Any, package: str, names: str) -> bool:
    return any(
        cls.__module__.startswith(package) and any(fnmatchcase(cls.__name__, name) for name in names.split())
        for cls in kind.__mro__
    )


def class_name(module: Any) -> str:
    """The name of the class, or of the class that FSDP2 has replaced by its own."""
    made = (cls for cls in type(module).__mro__ if "FSDPModule" not in (base.__name__ for base in cls.__mro__))
    return next(made).__name__


def _matrices(rule: str, **layout: Any) -> Decision:
    return Decision(True, rule, layout)


def _adamw(rule: str, **layout: Any) -> Callable[[Site], Decision]:
    """AdamW; ``layout`` applies if a user includes the parameter in the matrix optimizer."""
    return lambda _: Decision(False, rule, layout)


def _cut(key: str, sizes: Sequence[int]) -> dict[str, Any]:
    return {key: list(sizes)} if len(sizes) > 1 else {}


# Classes of torch.


def _computed_by_hook(site: Site) -> Decision | None:
    """Parameters from which a hook computes a weight: weight_norm, spectral_norm and prune of torch.nn.utils."""
    for hook in site.module._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            name = getattr(hook, "name", None) or getattr(hook, "_tensor_name", None)
            if name and site.leaf.startswith(f"{name}_"):
                return Decision(False, "parametrized weight")
    return None


def _linear(site: Site) -> Decision:
    """The weight, (output, input). Layers that transformers stores in one tensor are cut into those layers."""
    module, rule = site.module, f"no rule for {site.leaf} of {class_name(site.module)}"
    if site.leaf != "weight":
        return Decision(False, rule, guess=True)
    if site.shape != (module.out_features, module.in_features):
        return Decision(False, f"{rule}, whose shape is not (out_features, in_features)", guess=True)
    sizes, parts = _fused(site)
    return _matrices("Linear" + parts, **_cut("split_rows", sizes))


def _fused(site: Site) -> tuple[list[int], str]:
    """Rows of each layer that this linear layer of transformers holds, and what they are.

    Where the rows of q, k and v alternate by head (GPT-NeoX, BLOOM), there are no blocks to cut: one matrix.
    """
    owner, rows = site.owner, site.shape[0]
    if not is_a(owner, "transformers", "*"):
        return [rows], ""
    if site.layer == "gate_up_proj":
        return [rows // 2] * 2, ", gate and up"
    if site.layer == "qkv":  # vision towers
        values = getattr(owner, "kv_dim", rows // 3)
        return [rows - 2 * values, values, values], ", q, k and v"
    if site.layer == "qkv_proj" and is_a(owner, "transformers", "Phi3Attention Phi4MultimodalAttention"):
        values = owner.num_key_value_heads * owner.head_dim
        return [rows - 2 * values, values, values], ", q, k and v"
    return [rows], ""


def _convolution(site: Site) -> Decision:
    """Rows are dimension 0, columns all others; each group of channels is a matrix. Depthwise ones have none."""
    module = site.module
    kind = "transposed convolution" if module.transposed else "convolution"
    layout: dict[str, Any] = {"flatten": True}
    if module.transposed:
        layout["output_dim"] = 1
    if module.groups == 1:
        return _matrices(kind, **layout)
    layout["heads"] = module.groups
    if module.groups in (module.in_channels, module.out_channels):
        return Decision(False, f"depthwise {kind}", layout)
    return _matrices(f"{kind} in groups", **layout)


def _attention(site: Site) -> Decision:
    """MultiheadAttention: q, k and v are one tensor if their inputs have one width."""
    if site.leaf == "in_proj_weight":
        return _matrices("MultiheadAttention, q, k and v", split_rows=[site.shape[0] // 3] * 3)
    return _matrices("MultiheadAttention")


def _recurrent(site: Site) -> Decision:
    """RNN, LSTM, GRU and their cells: (gates x hidden, input)."""
    hidden = int(site.module.hidden_size)
    gates = 1 if site.leaf.startswith("weight_hr") else site.shape[0] // hidden
    return _matrices("RNN, LSTM or GRU" + ", by gate" * (gates > 1), **_cut("split_rows", [hidden] * gates))


# Classes of transformers and torchtitan.


def _conv1d(site: Site) -> Decision:
    """A linear layer, stored (input, output). GPT-2's c_attn is q, k and v; in cross-attention, k and v."""
    inputs, outputs = site.shape
    if site.layer == "c_attn" and outputs % inputs == 0:
        sizes = [inputs] * (outputs // inputs)
        return _matrices("transformers Conv1D, q, k and v", output_dim=1, **_cut("split_columns", sizes))
    return _matrices("transformers Conv1D", output_dim=1)


def _experts(site: Site) -> Decision:
    """(experts, output, input), or (experts, input, output) where the module says so. In 2-D: biases and gains."""
    if len(site.shape) != 3:
        return Decision(False, "biases and gains of experts")
    module, gate_up = site.module, site.leaf == "gate_up_proj"
    in_out = getattr(module, "is_transposed", is_a(module, "transformers", "Llama4TextExperts GptOssExperts"))
    blocks = getattr(module, "is_concatenated", not is_a(module, "transformers", "GptOssExperts"))
    layout: dict[str, Any] = {"output_dim": 1} if in_out else {}
    if gate_up and blocks:
        half = site.shape[-1 if in_out else -2] // 2
        layout["split_columns" if in_out else "split_rows"] = [half, half]
    stored = "stacked experts, (in, out)" if in_out else "stacked experts, (out, in)"
    return _matrices(stored + (", gate and up" + " interleaved" * (not blocks) if gate_up else ""), **layout)


def _dbrx_experts(site: Site) -> Decision:
    """(experts x hidden, width): the rows of each expert are a matrix; w2 is used as (input, output)."""
    experts = int(site.module.moe_num_experts)
    if site.leaf == "w2":
        return _matrices("stacked experts, (in, out)", heads=experts, output_dim=1)
    return _matrices("stacked experts, (out, in)", heads=experts)


def _state_space(site: Site) -> Decision | None:
    return Decision(False, "state space") if site.leaf == "A_log" else None


@dataclass(frozen=True)
class Rule:
    """Decides about the parameters that modules of these classes hold themselves."""

    package: str
    classes: str  # names, with wildcards
    decide: Callable[[Site], Decision | None]  # None: a later rule decides


#: The first rule that decides counts. Vectors, routers and heads are found before (module_roles.py).
RULES = (
    Rule("torch.", "Module", _computed_by_hook),
    Rule("torch.", "Linear", _linear),
    Rule("torch.", "_ConvNd", _convolution),
    Rule("torch.", "MultiheadAttention", _attention),
    Rule("torch.", "RNNBase RNNCellBase", _recurrent),
    Rule("torch.", "Embedding EmbeddingBag", _adamw("embedding", output_dim=1)),
    Rule("torch.", "*Norm *Norm?d", _adamw("norm")),
    Rule("torch.", "ParametrizationList", _adamw("parametrized weight")),
    Rule("transformers", "Conv1D", _conv1d),
    Rule("transformers", "DbrxExpertGLU", _dbrx_experts),
    Rule("transformers", "*Experts", _experts),
    Rule("transformers", "*Embedding *Embeddings", _adamw("embedding")),
    Rule("transformers", "*Norm", _adamw("norm")),
    Rule("transformers", "*", _state_space),
    Rule("torchtitan", "*Experts", _experts),
)


def by_class(site: Site) -> Decision | None:
    """The decision of the table, or None."""
    for rule in RULES:
        if is_a(site.module, rule.package, rule.classes) and (decision := rule.decide(site)) is not None:
            return decision
    return None
