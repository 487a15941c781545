#!/usr/bin/env bash
# `muster bench` and `muster tune` on a GPU. Usage: bench.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/../support/checks.sh"
needs_gpu

echo "== bench"
for graph in on off; do
  gives got "$muster" bench "$small" --ranks 1 --device cuda --strategy megabatch,global --graph "$graph" --json
  holds "got['device'] == 'cuda' and got['graph'] is ('$graph' == 'on') and len(got['strategies']) == 2"
  holds 'all(s["bitwise_equal"] and 0 < s["host_ms"] <= s["step_ms"] for s in got["strategies"])'
  holds 'all(s["steady_ms"] > 0 and s["first_step_s"] > 0 and s["scratch_bytes_max"] > 0 for s in got["strategies"])'
done
gives got "$muster" bench "$small" --ranks 2 --device cuda --strategy global --trace "$work/trace.json" --json
holds 'got["graph"] is False and {e["pid"] for e in trace["traceEvents"]} == {0, 1}'
if has_mpi && has_nccl; then
  gives got on 2 "$muster" bench "$small" --ranks 2 --device cuda --strategy global,megabatch --json
  holds 'got["comm"] == "nccl" and got["graph"] is True and all(s["bitwise_equal"] for s in got["strategies"])'
  holds 'all(s["messages"] > 0 and s["bytes_sent_max"] > 0 for s in got["strategies"])'
fi

echo "== tune"
gives printed "$muster" tune --device cuda -o "$work/cost.json" --json
holds 'cost == printed and cost["device"] == "cuda, measured" and cost["rates"][-1][0] >= 4096'
gives plan "$muster" plan "$small" --ranks 2 --cost "$work/cost.json" --json

finish
