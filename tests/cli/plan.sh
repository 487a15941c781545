#!/usr/bin/env bash
# The contract of `muster plan`: what it prints, what it refuses, and what the plans of the presets promise.
# Usage: plan.sh MUSTER
set -euo pipefail

. "$(dirname "$0")/support/checks.sh"

# plan NAME ARGUMENTS...: plans with --json and keeps the object as NAME for `holds`.
plan() {
  local name=$1
  shift
  gives "$name" "$muster" plan "$@" --json
}

# rejects WORD ARGUMENTS...: exit 2 and one line that contains WORD.
rejects() {
  local word=$1
  shift
  refuses 2 "$word" "$muster" "$@"
}

# model NAME PARAMETERS [MESHES]: writes a model file on two ranks.
model() {
  local meshes=${3:-'{"name": "world", "axes": "fsdp=2"}'}
  echo "{\"name\": \"$1\", \"meshes\": [$meshes], \"defaults\": {\"placements\": {\"fsdp\": \"shard(0)\"}}, \"parameters\": [$2]}" \
    >"$work/$1.model"
}

echo "== what it prints"
grep -q '^muster [0-9]' <<<"$("$muster" --version)" || fail "--version"
for help in "--help" "plan --help"; do
  # shellcheck disable=SC2086
  grep -q '^Usage: muster' <<<"$("$muster" $help)" || fail "$help"
done
for preset in gpt2-small modded-nanogpt modded-nanogpt-168 llama-7b qwen3-moe-30b moe-397b; do
  grep -q "^$preset  *[^ ]" <<<"$("$muster" presets)" || fail "presets does not list $preset with its source"
done
table=$("$muster" plan gpt2-small --mesh fsdp=8)
for part in 'gpt2-small on 8 ranks' 'hash' '█' 'collectives' 'padding 0 B'; do
  grep -qF -- "$part" <<<"$table" || fail "the table lacks: $part"
done
grep -q $'\x1b' <<<"$table" && fail "colours without a terminal"
plan small gpt2-small --mesh fsdp=2
holds 'not {"model", "ranks", "strategy", "waves", "collectives", "rounds", "bytes_sent_max", "bytes_sent_total",
  "padding_bytes", "imbalance", "over_bound", "scratch_bytes_max", "predicted_ms", "plan_ms", "hash"} - set(small)'
holds 'small["model"] == "gpt2-small" and small["ranks"] == 2 and small["strategy"] == "global"'
holds 'len(small["hash"]) == 16 and int(small["hash"], 16) >= 0'
holds 'small["matrices"] == 72 and sum(w["matrices"] for w in small["wave_table"]) == 72'
holds 'sum(r["bytes_sent"] for r in small["rank_table"]) == small["bytes_sent_total"]'
plan short gpt2-small --ranks 2
holds 'short["hash"] == small["hash"]'
plan layers gpt2-small --ranks 2 --layers 3
holds 'layers["matrices"] == 18'

echo "== --explain and --html"
matrix=$("$muster" plan gpt2-small --ranks 4 --explain h.3.mlp.fc.weight)
grep -q 'fsdp: shard(0)' <<<"$matrix" || fail "--explain of a matrix"
elements=$("$muster" plan gpt2-small --mesh replicate=4 --explain wte)
grep -q 'updat' <<<"$elements" || fail "--explain of an elementwise parameter"
plan explained gpt2-small --ranks 4 --explain h.3.mlp.fc.weight
holds 'explained["explanation"]["parameter"] == "h.3.mlp.fc.weight"'
holds 'explained["explanation"]["matrices"][0]["owner"] in range(4)'
echo "== --parameters"
plan table gpt2-small --ranks 4 --parameters
holds 'len(table["parameter_table"]) == table["parameters"]'
holds 'sum(p["elements"] for p in table["parameter_table"]) == table["elements"]'
holds 'sum(p["matrices"] for p in table["parameter_table"]) == table["matrices"]'
holds '{p["parameter"]: p for p in table["parameter_table"]}["h.3.mlp.fc.weight"]["owners"] == [explained["explanation"]["matrices"][0]["owner"]]'
holds 'not {"shape", "dtype", "layout", "algorithm", "update"} - set(table["parameter_table"][0])'
holds '"parameter_table" not in explained'
rows=$("$muster" plan gpt2-small --ranks 4 --parameters)
for part in 'parameter' 'updated by' 'h.3.mlp.fc.weight' '3072×768' 'fsdp: shard(0)' 'normuon' 'holders' '0-3' '124,439,808'; do
  grep -qF -- "$part" <<<"$rows" || fail "--parameters lacks: $part"
done
plan page gpt2-small --ranks 4 --parameters --html "$work/page.html"
grep -q 'updated by' "$work/page.html" || fail "--parameters --html"
rejects "--explain wte" plan gpt2-small --ranks 2 --parameters --explain wte
plan page gpt2-small --ranks 4 --html "$work/page.html"
grep -q '</html>' "$work/page.html" || fail "--html"
if (($(find "$work" -name 'page.html*' | wc -l) != 1)); then fail "--html left something behind"; fi

echo "== rounds and padding of the strategies"
plan chunked gpt2-small --mesh fsdp=2 --strategy chunked
plan megabatch gpt2-small --mesh fsdp=2 --strategy megabatch
plan one gpt2-small --mesh fsdp=2 --strategy global --waves 1
holds 'chunked["rounds"] == 36'
holds 'megabatch["rounds"] == 3'
holds 'one["rounds"] == 1 and one["collectives"] == 2 and one["padding_bytes"] == 0'
plan megabatch5 gpt2-small --mesh fsdp=5 --strategy megabatch
plan global5 gpt2-small --mesh fsdp=5 --strategy global
holds 'megabatch5["padding_bytes"] > 0 and megabatch5["zero_matrices"] > 0'
holds 'global5["padding_bytes"] == 0 and global5["zero_matrices"] == 0'
for strategy in global per_matrix chunked grouped megabatch routed layerwise; do
  plan "every_$strategy" gpt2-small --mesh fsdp=3 --strategy "$strategy"
  holds "every_$strategy['strategy'] == '$strategy' and every_$strategy['padding_bytes'] >= 0"
done

echo "== balance"
plan balanced modded-nanogpt --mesh replicate=8 --scratch-mib 1536
plan grouped modded-nanogpt --mesh replicate=8 --strategy grouped
plan listed modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10,16,16
plan mlp_only modded-nanogpt --mesh replicate=8 --scratch-mib 1536 --rules "$root/examples/rules/normuon-mlp-only.json"
holds 'balanced["slowest_rank_ms"] < grouped["slowest_rank_ms"]'
holds 'listed["hash"] == grouped["hash"] and listed["zero_matrices"] == 7 + 6'
holds 'mlp_only["slowest_rank_ms"] < balanced["slowest_rank_ms"] and mlp_only["hash"] != balanced["hash"]'

echo "== a large mixture of experts"
large() {
  local mib=$1
  shift
  plan moe moe-397b "$@" --scratch-mib "$mib"
  holds "moe['padding_bytes'] == 0 and moe['over_bound'] <= 1.05 and moe['scratch_bytes_max'] <= $mib << 20 or print('$*')"
}
large 2048 --mesh fsdp=128
large 2048 --mesh fsdp=16,ep=8
large 4096 --mesh fsdp=7
large 4096 --mesh fsdp=7 --set experts=60
large 2048 --mesh fsdp=96 --set experts=160

echo "== the scratch cap"
# The least that the error names works, and one less does not.
refuses 2 'the least that works is ' "$muster" plan moe-397b --mesh fsdp=64 --scratch-mib 7
least=$(sed -n 's/.*the least that works is \([0-9]*\) MiB.*/\1/p' "$work/stderr")
plan least moe-397b --mesh fsdp=64 --scratch-mib "$least"
holds "least['scratch_cap_bytes'] == $least << 20 and least['scratch_cap_raised'] is False"
rejects "least that works is $least MiB" plan moe-397b --mesh fsdp=64 --scratch-mib $((least - 1))
plan usual moe-397b --mesh fsdp=64
holds "usual['scratch_cap_raised'] is True and ($least - 1) << 20 < usual['scratch_cap_bytes'] * 2 / 3 <= $least << 20"
holds "usual['scratch_bytes_max'] <= usual['scratch_cap_bytes']"
table=$("$muster" plan moe-397b --mesh fsdp=64)
grep -q '1.5 times the least that this model needs' <<<"$table" || fail "plan does not say that it raised the cap"
grep -q '(cap 1.00 GiB)' <<<"$("$muster" plan gpt2-small --ranks 2)" || fail "plan does not say the default cap"
plan none moe-397b --mesh fsdp=64 --scratch-mib 0
holds "none['scratch_cap_bytes'] == 0 and none['scratch_bytes_max'] >= usual['scratch_bytes_max']"

echo "== waves in flight, and groups that mix kinds"
plan two llama-7b --mesh fsdp=16 --waves 12 --scratch-mib 0 --in-flight 2
plan whole llama-7b --mesh fsdp=16 --waves 12 --scratch-mib 0 --in-flight all
plan posted modded-nanogpt --mesh replicate=8 --strategy grouped
plan mixed modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10,32 --mixed-groups
holds 'two["in_flight"] == 2 and whole["in_flight"] == whole["waves"] - 1 > 2'
holds 'two["scratch_bytes_max"] < whole["scratch_bytes_max"] and two["bytes_sent_total"] == whole["bytes_sent_total"]'
holds 'posted["rounds"] == 5 and posted["in_flight"] == 4 and mixed["rounds"] == 4'
table=$("$muster" plan llama-7b --mesh fsdp=16 --waves 12 --scratch-mib 0 --in-flight 2)
grep -q 'rounds, 2 in flight' <<<"$table" || fail "the table has no waves in flight"

echo "== flags that a strategy would ignore, and sums that overflow"
rejects "--scratch-mib 64: is for --strategy global" plan gpt2-small --ranks 2 --strategy chunked --scratch-mib 64
rejects "--scratch-mib 64: is for --strategy global" simulate gpt2-small --ranks 2 --cluster h100-ib --strategy chunked --scratch-mib 64
most=9223372036854775807
rejects "do not sum" plan gpt2-small --ranks 2 --strategy grouped --mixed-groups --groups "$most,$most,9223370937343148105"

echo "== bad flags"
rejects "bogus" bogus
rejects "MODEL" plan
rejects "no-such-model" plan no-such-model --ranks 2
rejects "MODEL" plan "" --ranks 2
rejects "--bogus" plan gpt2-small --ranks 2 --bogus
rejects "extra" plan gpt2-small extra --ranks 2
rejects "--mesh" plan gpt2-small
rejects "--mesh" plan gpt2-small --mesh
rejects "--mesh" plan gpt2-small --mesh ""
rejects "--ranks 2 and --mesh fsdp=4" plan gpt2-small --ranks 2 --mesh fsdp=4
for ranks in 0 -1 x 2.5 1e3 99999999999999999999 4294967296; do rejects "$ranks" plan gpt2-small --ranks "$ranks"; done
for mesh in fsdp fsdp= =2 fsdp=0 fsdp=-2 fsdp=2, fsdp=2x fsdp=99999999999999999999 fsdp=1000000,tp=1000000; do
  rejects "--mesh" plan gpt2-small --mesh "$mesh"
done
rejects "fsdp" plan gpt2-small --mesh fsdp=2,fsdp=2
rejects "sideways" plan gpt2-small --mesh sideways=2
rejects "sometimes" plan gpt2-small --ranks 2 --strategy sometimes
# `plan` had a limit of its own, and the library's message for what it let through does not name the flag.
for waves in -1 x 1048577 99999999999; do rejects "--waves" plan gpt2-small --ranks 2 --waves "$waves"; done
rejects "--waves 2: is for --strategy global, not chunked" plan gpt2-small --ranks 2 --strategy chunked --waves 2
rejects "'global, 1 wave' and 'global, 2 waves', but this command takes one plan" plan gpt2-small --ranks 2 --waves 1,2
for waves in -1 x 99999999999; do rejects "--in-flight" plan gpt2-small --ranks 2 --in-flight "$waves"; done
for mib in -1 x 9223372036854775807; do rejects "--scratch-mib" plan gpt2-small --ranks 2 --scratch-mib "$mib"; done
rejects "--scratch-mib: scratch cap of 1 MiB" plan gpt2-small --ranks 2 --scratch-mib 1
for layers in 0 -1 x; do rejects "--layers" plan gpt2-small --ranks 2 --layers "$layers"; done
rejects "experts" plan gpt2-small --ranks 2 --set experts=4
for setting in experts experts= =4 experts=x experts=0; do rejects "--set" plan moe-397b --ranks 8 --set "$setting"; done
rejects "--groups" plan modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,x
rejects "--groups" plan modded-nanogpt --mesh replicate=8 --groups 1,10,16,16
rejects "group" plan modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10
rejects "mixed groups allow that" plan modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10,32
rejects "--mixed-groups" plan modded-nanogpt --mesh replicate=8 --mixed-groups
rejects "nobody" plan gpt2-small --ranks 2 --explain nobody
rejects "missing.json" plan gpt2-small --ranks 2 --cost "$work/missing.json"
rejects "missing.json" plan gpt2-small --ranks 2 --rules "$work/missing.json"
rejects "page.html" plan gpt2-small --ranks 2 --html "$work/missing/page.html"

echo "== bad files"
model zero '{"name": "p.zero", "shape": [4, 0]}'
model negative '{"name": "p.negative", "shape": [4, -4]}'
model overflow '{"name": "p.overflow", "shape": [4611686018427387904, 4]}'
model huge '{"name": "p.huge", "shape": [4, 99999999999999999999]}'
model blocks '{"name": "p.blocks", "shape": [8, 4], "rows": [4, 3]}'
model dim '{"name": "p.dim", "shape": [8, 4], "placements": {"fsdp": "shard(2)"}}'
model axis '{"name": "p.axis", "shape": [8, 4]}' '{"name": "world", "axes": "fsdp=2,odd=2"}'
model overlap '{"name": "p.overlap", "shape": [8, 4]}' '{"name": "world", "axes": "fsdp=2", "ranks": [1, 1]}'
for name in zero negative overflow huge blocks dim axis; do rejects "p.$name" plan "$work/$name.model"; done
rejects "world" plan "$work/overlap.model"
echo '{"name": "cut", "parameters": [{"na' >"$work/cut.model"
rejects "cut.model" plan "$work/cut.model"
: >"$work/empty.model"
rejects "empty.model" plan "$work/empty.model"
printf '\377\376\000' >"$work/binary.model"
rejects "binary.model" plan "$work/binary.model"
echo '{"rules": [{"match": "*", "placements": {"fsdp": "shard(0)"}}]}' >"$work/rules.txt"
printf '\100\000\000\000\000\000\000\000{"a":' >"$work/cut.safetensors"
rejects "cut.safetensors" plan "$work/cut.safetensors" --ranks 2 --rules "$work/rules.txt"
printf '\377\377\377\377\377\377\377\177{}' >"$work/long.safetensors"
rejects "long.safetensors" plan "$work/long.safetensors" --ranks 2 --rules "$work/rules.txt"
rejects "--rules" plan "$work/long.safetensors" --ranks 2
echo '{"device": "broken"' >"$work/cost.txt"
rejects "cost.txt" plan gpt2-small --ranks 2 --cost "$work/cost.txt"

echo "== a run that fails"
status=0
"$muster" plan gpt2-small --ranks 2 >/dev/full 2>"$work/stderr" || status=$?
if ((status != 1)); then fail "a full disk: exit $status, not 1"; fi
refuses 1 "--html: cannot write '/dev/full'" "$muster" plan gpt2-small --ranks 2 --html /dev/full

finish
