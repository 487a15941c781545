#!/usr/bin/env bash
# A checkpoint of over 400 GB in 90 shards plans from its headers: the data are holes in sparse files, which nothing reads.
# Usage: safetensors.sh MUSTER
set -euo pipefail

muster=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 - "$work" <<'EOF'
import json, pathlib, struct, sys

work = pathlib.Path(sys.argv[1])
d, mlp, layers, vocab = 16384, 53248, 64, 128256  # about the public 405B
shapes = {"model.embed_tokens.weight": [vocab, d], "lm_head.weight": [vocab, d], "model.norm.weight": [d]}
for i in range(layers):
    p = f"model.layers.{i}."
    for name, shape in {
        "self_attn.q_proj": [d, d], "self_attn.k_proj": [1024, d], "self_attn.v_proj": [1024, d],
        "self_attn.o_proj": [d, d], "mlp.gate_proj": [mlp, d], "mlp.up_proj": [mlp, d], "mlp.down_proj": [d, mlp],
        "input_layernorm": [d], "post_attention_layernorm": [d],
    }.items():
        shapes[f"{p}{name}.weight"] = shape
names = sorted(shapes)
weight_map = {}
shards = 90
for s in range(shards):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in names[s::shards]:
        size = 2
        for dim in shapes[name]:
            size *= dim
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
        at += size
        weight_map[name] = f"model-{s}.safetensors"
    text = json.dumps(header).encode()
    with open(work / f"model-{s}.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
(work / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
EOF

expect() {
  if ! python3 -c "import json, sys; p = json.load(open(sys.argv[1])); sys.exit(not ($1))" "$work/plan.json"; then
    echo "FAILED: $1: $(head -c 600 "$work/plan.json")" >&2
    exit 1
  fi
}

"$muster" plan "$work/model.safetensors.index.json" --rules "$root/examples/rules/hf-llama.json" --mesh fsdp=16,tp=8 \
  --scratch-mib 20480 --json >"$work/plan.json"
expect "p['elements'] * 2 > 400e9 and p['parameters'] == 579 and p['matrices'] == 448"
expect "p['padding_bytes'] == 0 and p['over_bound'] <= 1.05"

# One shard that is cut short, and one that the index names but is not there.
truncate -s 1000 "$work/model-7.safetensors"
if "$muster" plan "$work/model.safetensors.index.json" --rules "$root/examples/rules/hf-llama.json" --mesh fsdp=16 \
  2>"$work/stderr"; then
  echo "FAILED: a truncated shard was accepted" >&2
  exit 1
fi
grep -q "model-7.safetensors" "$work/stderr"
rm "$work/model-7.safetensors"
if "$muster" plan "$work/model.safetensors.index.json" --rules "$root/examples/rules/hf-llama.json" --mesh fsdp=16 \
  2>"$work/stderr"; then
  echo "FAILED: a missing shard was accepted" >&2
  exit 1
fi
grep -q "model-7.safetensors" "$work/stderr"
