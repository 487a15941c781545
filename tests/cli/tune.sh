#!/usr/bin/env bash
# The contract of `muster tune`. Usage: tune.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

echo "== what it writes"
gives printed "$muster" tune --ranks 2 -o "$work/cost.json" --json
holds 'cost == printed and cost["rates"][0][0] < cost["rates"][-1][0] and 0 <= cost["overlap_percent"] <= 100'
holds 'cost["memory_mbps"] > 10 and cost["intra_node_mbps"] > 10 and cost["message_ns"] > 0'
if (($(find "$work" -name 'cost.json*' | wc -l) != 1)); then fail "left something beside cost.json"; fi
gives plan "$muster" plan "$small" --ranks 2 --cost "$work/cost.json" --json
holds 'plan["cost"] == cost["device"]'
gives bench "$muster" bench "$small" --ranks 2 --strategy global --steps 1 --cost "$work/cost.json" --json

echo "== the table that docs/reference/cost-table.md shows is the built-in one"
example=$(dirname "$0")/../../examples/docs/reference_cost_table.json
gives shown "$muster" plan "$small" --ranks 2 --cost "$example" --json
gives built_in "$muster" plan "$small" --ranks 2 --cost h200 --json
gives other "$muster" plan "$small" --ranks 2 --cost cpu --json
holds 'shown["hash"] == built_in["hash"] != other["hash"]'

echo "== bad input"
refuses 2 '--output' "$muster" tune
refuses 2 '-o' "$muster" tune -o "$work"
refuses 2 '-o' "$muster" tune -o "$work/no/such/folder.json"
refuses 2 '--html' "$muster" tune -o "$work/none" --html "$work/no/such/folder.html"
refuses 2 '--ranks' "$muster" tune --ranks 0 -o "$work/none"
refuses 2 '--threads' "$muster" tune --threads none -o "$work/none"
if ! has_gpu; then refuses 2 '--device' "$muster" tune --device cuda -o "$work/none"; fi
refuses 2 '--device' "$muster" tune --device 0 -o "$work/none"
refuses 2 '--comm' "$muster" tune --comm nccl -o "$work/none"
if [[ -e $work/none ]]; then fail "wrote a file in spite of bad input"; fi

finish
