#!/usr/bin/env bash
# The contract of `muster simulate`: what it prints and what it refuses.
# Usage: simulate.sh MUSTER
set -euo pipefail

. "$(dirname "$0")/support/checks.sh"

rejects() {
  local word=$1
  shift
  refuses 2 "$word" "$muster" simulate "$@"
}

# cluster NAME FIELDS: writes a cluster file.
cluster() { echo "{\"name\": \"$1\", \"source\": \"a test\"$2}" >"$work/$1.cluster"; }

echo "== what it prints"
gives moe "$muster" simulate moe-397b --mesh fsdp=128 --cluster h100-ib --strategy chunked,routed,global --scratch-mib 2048 --json
holds 'moe["cluster"] == "h100-ib" and moe["ranks"] == 128 and "data sheet" in moe["source"]'
holds '[s["strategy"] for s in moe["strategies"]] == ["chunked", "routed", "global"]'
holds 'not any({"strategy", "step_ms", "bound_ms", "compute_ms", "exposed_comm_ms", "scratch_bytes_max", "memory_bytes_max",
  "fits"} - set(s) for s in moe["strategies"])'
holds 'all(s["bound_ms"] <= s["step_ms"] for s in moe["strategies"])'
holds 'moe["strategies"][0]["fits"] is False and moe["strategies"][0]["memory_bytes_max"] > 80e9'
holds 'moe["strategies"][2]["fits"] is True and moe["strategies"][2]["scratch_bytes_max"] <= 2048 << 20'
table=$("$muster" simulate gpt2-small --ranks 8 --cluster gb300)
for part in 'gpt2-small on 8 ranks of gb300' 'exposed comm' 'megabatch'; do
  grep -qF -- "$part" <<<"$table" || fail "the table lacks: $part"
done

echo "== a model that needs more scratch than the default cap"
table=$("$muster" simulate moe-397b --mesh fsdp=64 --cluster h100-ib)
grep -q 'scratch of global: cap .* 1.5 times the least that this model needs' <<<"$table" || fail "simulate does not say the cap"

echo "== every strategy that can plan the model"
gives every "$muster" simulate "$small" --ranks 3 --cluster h100-ib --strategy all --json
holds 'len(every["strategies"]) >= 6'

echo "== waves in flight"
gives flights "$muster" simulate llama-7b --mesh fsdp=16 --cluster h100-ib --strategy global --waves 12 --scratch-mib 0 --in-flight 1,2,all --json
holds '[s["in_flight"] for s in flights["strategies"]] == [1, 2, flights["strategies"][2]["waves"] - 1]'
holds 'flights["strategies"][2]["in_flight"] > 2 and len({s["bytes_sent_total"] for s in flights["strategies"]}) == 1'
rejects "--in-flight" gpt2-small --ranks 2 --cluster h100-ib --in-flight 1,some
rejects "--groups" gpt2-small --ranks 2 --cluster h100-ib --groups 1,2

echo "== --trace"
gives traced "$muster" simulate "$small" --ranks 3 --cluster h100-ib --strategy global --trace "$work/steps.json" --json
holds '{e["pid"] for e in steps["traceEvents"]} == {0, 1, 2}'
holds 'any(e["name"] == "wave 0 in" for e in steps["traceEvents"])'
rejects "$work/none" gpt2-small --ranks 2 --cluster h100-ib --trace "$work/none/steps.json"

echo "== --html"
"$muster" simulate "$small" --ranks 3 --cluster h100-ib --html "$work/report.html" >/dev/null
grep -q 'small on 3 ranks of h100-ib, simulated' "$work/report.html" || fail "the report has no title"
rejects "--html" gpt2-small --ranks 2 --cluster h100-ib --html "$work/none/report.html"

echo "== clusters"
cluster mine ', "cost": "cpu", "ranks_per_node": 2, "nics_per_node": 1, "nic_mbps": 1000'
gives mine "$muster" simulate "$small" --ranks 4 --cluster "$work/mine.cluster" --json
holds 'mine["cluster"] == "mine" and mine["cost"] == "cpu" and all(s["fits"] for s in mine["strategies"])'
cluster odd ', "nic_mbps": -3'
cluster unknown ', "nics": 8'
echo '{' >"$work/broken.cluster"
rejects "'nic_mbps' must be an integer from 10 to 1000000000000, not -3" gpt2-small --ranks 2 --cluster "$work/odd.cluster"
rejects "unknown key 'nics'" gpt2-small --ranks 2 --cluster "$work/unknown.cluster"
rejects "broken.cluster" gpt2-small --ranks 2 --cluster "$work/broken.cluster"
rejects "--cluster" gpt2-small --ranks 2 --cluster tpu
rejects "--cluster" gpt2-small --ranks 2 --cluster "$(printf 'x%.0s' {1..300})"
cluster vast ', "ranks_per_node": 1048576'
gives vast "$muster" simulate gpt2-small --ranks 4096 --cluster "$work/vast.cluster" --strategy global --json
holds 'vast["strategies"][0]["step_ms"] > 0'
rejects "--cluster" gpt2-small --ranks 2
rejects "--cost" gpt2-small --ranks 2 --cluster h100-ib --cost none
rejects "--strategy" gpt2-small --ranks 2 --cluster h100-ib --strategy best

finish
