#!/usr/bin/env bash
# The commands that docs/howto/plan-my-model.md shows run, and print what the page says.
# Usage: docs_commands.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

mkdir "$work/bin" "$work/clone"
ln -s "$(realpath "$muster")" "$work/bin/muster"
ln -s "$root/examples" "$work/clone/examples"
cd "$work/clone"

# A Llama of one layer, as its files have it: headers, and holes instead of data.
python3 - <<'EOF'
import json, pathlib, struct

d, mlp, vocab = 256, 512, 1000
shapes = {"model.embed_tokens.weight": [vocab, d], "lm_head.weight": [vocab, d], "model.norm.weight": [d]}
for name, shape in {
    "self_attn.q_proj": [d, d], "self_attn.k_proj": [d, d], "self_attn.v_proj": [d, d], "self_attn.o_proj": [d, d],
    "mlp.gate_proj": [mlp, d], "mlp.up_proj": [mlp, d], "mlp.down_proj": [d, mlp], "input_layernorm": [d],
}.items():
    shapes[f"model.layers.0.{name}.weight"] = shape
header, at = {}, 0
for name, shape in shapes.items():
    size = 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
with open("model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + at)
index = {"weight_map": dict.fromkeys(shapes, "model.safetensors")}
pathlib.Path("model.safetensors.index.json").write_text(json.dumps(index))
EOF

PATH="$work/bin:$PATH" sh examples/docs/plan.sh >"$work/printed" || fail "examples/docs/plan.sh"
says() {
  grep -qE "$1" "$work/printed" || fail "examples/docs/plan.sh does not print '$1'"
}
says '^  step +202 ms predicted'
says '^  step +86\.8 ms predicted'
says 'owner rank 0'
says '^  global +4 +1 +90\.5 ms'
says '11 parameters.* 7 matrices'
says 'global +[0-9]+ +yes'
[ -s llama.html ] || fail "simulate --html wrote no report"
finish
