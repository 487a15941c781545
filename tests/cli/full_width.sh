#!/usr/bin/env bash
# A dozen cases at the width of real models: N ranks against one, bit for bit. Usage: full_width.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

# gpt2-small's and modded-nanogpt's shapes, gates of 1x12 and 6x12, and experts; no embedding, which takes the time.
cat >"$work/wide.model" <<'JSON'
{
  "name": "wide",
  "defaults": {
    "order": ["tp", "ep", "fsdp"],
    "placements": {"fsdp": "shard(0)", "tp": "replicate", "ep": "replicate", "replicate": "replicate", "zero": "flat"}
  },
  "parameters": [
    {"name": "gate", "shape": [1, 12], "dtype": "bf16", "norm_axis": "rows"},
    {"name": "gates", "shape": [6, 12], "dtype": "bf16", "norm_axis": "rows"},
    {"name": "qkvo", "shape": [3072, 768], "rows": [768, 768, 768, 768], "scale_shape": "parameter",
     "placements": {"tp": "shard(0)"}},
    {"name": "proj", "shape": [768, 3072], "dtype": "bf16", "placements": {"tp": "shard(1)"}},
    {"name": "experts", "shape": [5, 256, 384], "algorithm": "muon",
     "placements": {"ep": "shard(0)", "fsdp": ["shard(0)", "shard(1)"]}},
    {"name": "scalars", "shape": [62], "algorithm": "adamw"}
  ]
}
JSON
sed 's/"name": "wide",/"name": "sync", "grad_sync": true,/' "$work/wide.model" >"$work/sync.model"

# same MODEL MESH FLAGS...
same() {
  local model=$1 mesh=$2
  shift 2
  echo "$model $mesh $*"
  gives case "$muster" verify "$work/$model.model" --mesh "$mesh" --steps 1 --json "$@"
  holds "case['bitwise_equal'] and case['max_error'] < case['tolerance'] or print('$model $mesh $*')"
}
same wide fsdp=2 --strategy global --waves 1,4
same wide fsdp=3,tp=2 --strategy global --waves 2
same wide tp=2 --strategy megabatch
same wide ep=2,fsdp=2 --strategy global --waves 3
same wide replicate=2,fsdp=2 --strategy global,chunked --waves 0
same wide zero=3 --strategy global,layerwise --waves 0
same wide fsdp=8 --strategy routed
same sync replicate=3 --strategy global,per_matrix --waves 2
finish
