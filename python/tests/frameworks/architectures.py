"""Tiny models of common architectures, and where each of their parameters belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

ADAMW = "adamw"
#: How a matrix group reads a tensor.
OUT_IN: dict[str, Any] = {}
IN_OUT = {"output_dim": 1}
SQUARE_IN_OUT = {"output_dim": 1, "normalize": "columns"}  # of a square NorMuon takes rows: here these are inputs
CONVOLUTION = {"flatten": True}


@dataclass(frozen=True)
class Architecture:
    """``where``: patterns of names, each with "adamw" or the keys of a matrix group; the first that matches counts."""

    make: Callable[[], nn.Module]
    where: dict[str, Any]


_WIDTHS = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_DECODER = {**_WIDTHS, "num_key_value_heads": 1, "vocab_size": 40, "head_dim": 8}


def _gpt2() -> nn.Module:
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=40, n_positions=12, n_embd=16, n_layer=2, n_head=2, **tokens))


def _llama(tied: bool) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER, tie_word_embeddings=tied))


def _llama_classifier() -> nn.Module:
    return hf.LlamaForSequenceClassification(hf.LlamaConfig(**_DECODER, num_labels=3, pad_token_id=0))


def _phi3() -> nn.Module:
    return hf.Phi3ForCausalLM(hf.Phi3Config(**_DECODER, pad_token_id=0, bos_token_id=0, eos_token_id=0))


def _mixtral() -> nn.Module:
    return hf.MixtralForCausalLM(hf.MixtralConfig(**_DECODER, num_local_experts=4))


def _gpt_oss() -> nn.Module:
    return hf.GptOssForCausalLM(hf.GptOssConfig(**_DECODER, num_local_experts=4))


def _qwen3_moe() -> nn.Module:
    experts = {"num_experts": 4, "moe_intermediate_size": 12, "mlp_only_layers": [0]}
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_DECODER, **experts))


def _qwen2_moe() -> nn.Module:
    experts = {"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}
    return hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**_DECODER, **experts))


def _deepseek_v3() -> nn.Module:
    attention = {"kv_lora_rank": 6, "q_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "n_group": 2, "moe_intermediate_size": 12, "first_k_dense_replace": 1}
    widths = {**_WIDTHS, "num_key_value_heads": 2, "vocab_size": 40}
    return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**widths, **attention, **experts))


def _llama4() -> nn.Module:
    experts = {"num_local_experts": 4, "intermediate_size_mlp": 20, "interleave_moe_layer_step": 2}
    return hf.Llama4ForCausalLM(hf.Llama4TextConfig(**_DECODER, **experts, pad_token_id=0))


def _dbrx() -> nn.Module:
    widths = {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": 40, "max_seq_len": 12, "eos_token_id": 0}
    experts = {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 1, "hidden_size": 16}
    config = hf.DbrxConfig(**widths, ffn_config=experts, attn_config={"kv_n_heads": 1, "clip_qkv": 8})
    config.attn_config.rope_theta = 1e4  # the model reads it, and its config has no default
    return hf.DbrxForCausalLM(config)


def _bert() -> nn.Module:
    return hf.BertForPreTraining(hf.BertConfig(**_WIDTHS, vocab_size=40, max_position_embeddings=12))


def _vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**_WIDTHS, image_size=8, patch_size=4, num_labels=5))


def _t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    )


def _mamba() -> nn.Module:
    widths = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "time_step_rank": 3}
    return hf.MambaForCausalLM(hf.MambaConfig(vocab_size=40, **widths))


class _Cnn(nn.Module):
    """A small residual network of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.depthwise, self.pointwise = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 12, 1)
        self.grouped, self.up = nn.Conv2d(12, 8, 3, groups=2), nn.ConvTranspose2d(8, 6, 2)
        self.fc = nn.Linear(6, 10)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=24, batch_first=True)
    return nn.ModuleDict({"words": nn.Embedding(40, 16), "body": nn.TransformerEncoder(layer, 2)})


_EVERY_LLAMA = {
    "model.embed_tokens.weight": ADAMW,
    "*.self_attn.?_proj.weight": OUT_IN,
    "*.mlp.*_proj.weight": OUT_IN,
    "*norm.weight": ADAMW,
}
_ATTENTION_BIAS = {"*.self_attn.?_proj.bias": ADAMW}

ARCHITECTURES = {
    "GPT-2": Architecture(
        _gpt2,
        {
            "transformer.wte.weight": ADAMW,  # and the head, which is tied
            "transformer.wpe.weight": ADAMW,
            "transformer.h.*.attn.c_attn.weight": {
                "output_dim": 1,
                "split_columns": [16, 16, 16],
                "normalize": "columns",
            },
            "transformer.h.*.attn.c_proj.weight": SQUARE_IN_OUT,
            "transformer.h.*.mlp.c_fc.weight": IN_OUT,
            "transformer.h.*.mlp.c_proj.weight": IN_OUT,
            "*.ln_?.weight": ADAMW,
            "*.bias": ADAMW,
        },
    ),
    "Llama": Architecture(lambda: _llama(False), {"lm_head.weight": ADAMW, **_EVERY_LLAMA}),
    "Llama, tied": Architecture(lambda: _llama(True), _EVERY_LLAMA),
    "Llama, sequence classification": Architecture(_llama_classifier, {"score.weight": ADAMW, **_EVERY_LLAMA}),
    "Phi-3": Architecture(
        _phi3,
        {
            "*.self_attn.qkv_proj.weight": {"split_rows": [16, 8, 8]},
            "*.self_attn.o_proj.weight": OUT_IN,
            "*.mlp.gate_up_proj.weight": {"split_rows": [24, 24]},
            "*.mlp.down_proj.weight": OUT_IN,
            "*norm.weight": ADAMW,
            "lm_head.weight": ADAMW,
            "model.embed_tokens.weight": ADAMW,
        },
    ),
    "Mixtral": Architecture(
        _mixtral,
        {
            "*.mlp.gate.weight": ADAMW,
            "*.mlp.experts.gate_up_proj": {"split_rows": [24, 24]},
            "*.mlp.experts.down_proj": OUT_IN,
            "lm_head.weight": ADAMW,
            "*.self_attn.?_proj.weight": OUT_IN,
            "model.embed_tokens.weight": ADAMW,
            "*norm.weight": ADAMW,
        },
    ),
    "GPT-OSS": Architecture(
        _gpt_oss,
        {
            "*.mlp.router.weight": ADAMW,
            "*.mlp.router.bias": ADAMW,
            "*.mlp.experts.gate_up_proj": IN_OUT,  # columns alternate between gate and up: no blocks to cut
            "*.mlp.experts.down_proj": IN_OUT,
            "*.mlp.experts.*_bias": ADAMW,
            "*.self_attn.sinks": ADAMW,
            "*.self_attn.?_proj.weight": OUT_IN,
            **_ATTENTION_BIAS,
            "lm_head.weight": ADAMW,
            "model.embed_tokens.weight": ADAMW,
            "*norm.weight": ADAMW,
        },
    ),
    "Qwen3-MoE": Architecture(
        _qwen3_moe,
        {
            "model.layers.1.mlp.gate.weight": ADAMW,
            "model.layers.1.mlp.experts.gate_up_proj": {"split_rows": [12, 12]},
            "model.layers.1.mlp.experts.down_proj": OUT_IN,
            "lm_head.weight": ADAMW,
            **_EVERY_LLAMA,  # and the dense layer 0
        },
    ),
    "Qwen2-MoE": Architecture(
        _qwen2_moe,
        {
            "*.mlp.gate.weight": ADAMW,
            "*.mlp.shared_expert_gate.weight": ADAMW,  # one output
            "*.mlp.shared_expert.*_proj.weight": OUT_IN,
            "*.mlp.experts.gate_up_proj": {"split_rows": [12, 12]},
            "*.mlp.experts.down_proj": OUT_IN,
            "*.self_attn.?_proj.weight": OUT_IN,
            **_ATTENTION_BIAS,
            "lm_head.weight": ADAMW,
            "model.embed_tokens.weight": ADAMW,
            "*norm.weight": ADAMW,
        },
    ),
    "DeepSeek-V3": Architecture(
        _deepseek_v3,
        {
            "model.layers.1.mlp.gate.weight": ADAMW,
            "model.layers.1.mlp.experts.gate_up_proj": {"split_rows": [12, 12]},
            "model.layers.1.mlp.experts.down_proj": OUT_IN,
            "model.layers.1.mlp.shared_experts.*_proj.weight": OUT_IN,
            "*.self_attn.*proj*.weight": OUT_IN,
            "lm_head.weight": ADAMW,
            **{name: keys for name, keys in _EVERY_LLAMA.items() if "self_attn" not in name},
        },
    ),
    "Llama 4": Architecture(
        _llama4,
        {
            "*.feed_forward.router.weight": ADAMW,
            "*.feed_forward.experts.gate_up_proj": {"output_dim": 1, "split_columns": [24, 24]},
            "*.feed_forward.experts.down_proj": IN_OUT,
            "*.feed_forward.shared_expert.*_proj.weight": OUT_IN,
            "*.feed_forward.*_proj.weight": OUT_IN,
            "*.self_attn.?_proj.weight": OUT_IN,
            "lm_head.weight": ADAMW,
            "model.embed_tokens.weight": ADAMW,
            "*norm.weight": ADAMW,
        },
    ),
    "DBRX": Architecture(
        _dbrx,
        {
            "*.ffn.router.layer.weight": ADAMW,
            "*.ffn.experts.mlp.?1": {"heads": 4},  # (experts x hidden, width)
            "*.ffn.experts.mlp.w2": {"heads": 4, "output_dim": 1},
            "*.attn.*.weight": OUT_IN,
            "transformer.wte.weight": ADAMW,
            "lm_head.weight": ADAMW,
            "*norm*.weight": ADAMW,
        },
    ),
    "BERT": Architecture(
        _bert,
        {
            "bert.embeddings.*_embeddings.weight": ADAMW,  # and cls.predictions.decoder, which is tied
            "*.attention.self.*.weight": OUT_IN,
            "*.dense.weight": OUT_IN,
            "cls.seq_relationship.weight": ADAMW,
            "*LayerNorm.weight": ADAMW,
            "*.bias": ADAMW,
        },
    ),
    "ViT": Architecture(
        _vit,
        {
            "vit.embeddings.cls_token": ADAMW,
            "vit.embeddings.position_embeddings": ADAMW,
            "vit.embeddings.patch_embeddings.projection.weight": CONVOLUTION,
            "vit.layers.*.attention.*_proj.weight": OUT_IN,
            "vit.layers.*.mlp.fc?.weight": OUT_IN,
            "classifier.weight": ADAMW,
            "*layernorm*.weight": ADAMW,
            "*.bias": ADAMW,
        },
    ),
    "T5": Architecture(
        _t5,
        {
            "shared.weight": ADAMW,  # and the head, which is tied
            "*.relative_attention_bias.weight": ADAMW,
            "*Attention.?.weight": OUT_IN,
            "*.DenseReluDense.w?.weight": OUT_IN,
            "*layer_norm.weight": ADAMW,
        },
    ),
    "Mamba": Architecture(
        _mamba,
        {
            "backbone.embeddings.weight": ADAMW,  # and the head, which is tied
            "*.mixer.A_log": ADAMW,
            "*.mixer.D": ADAMW,
            "*.mixer.conv1d.weight": ADAMW,  # depthwise
            "*.mixer.*_proj.weight": OUT_IN,
            "*norm*.weight": ADAMW,
            "*.bias": ADAMW,
        },
    ),
    "CNN": Architecture(
        _Cnn,
        {
            "stem.weight": CONVOLUTION,
            "pointwise.weight": CONVOLUTION,
            "depthwise.weight": ADAMW,
            "grouped.weight": {"flatten": True, "heads": 2},
            "up.weight": {"flatten": True, "output_dim": 1},
            "fc.weight": ADAMW,
            "norm.weight": ADAMW,
            "*.bias": ADAMW,
        },
    ),
    "nn.TransformerEncoder": Architecture(
        _transformer,
        {
            "words.weight": ADAMW,
            "*.self_attn.in_proj_weight": {"split_rows": [16, 16, 16]},
            "*.self_attn.out_proj.weight": OUT_IN,
            "*.linear?.weight": OUT_IN,
            "*.norm?.weight": ADAMW,
            "*bias": ADAMW,
        },
    ),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ARCHITECTURES[name].make()
