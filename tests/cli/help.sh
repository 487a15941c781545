#!/usr/bin/env bash
# What the command says to someone who does not know it yet, or who misspells something. Usage: help.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

# says TEXT COMMAND...: exit 0, nothing on stderr, and TEXT in what it prints.
says() {
  local text=$1 status=0
  shift
  "$@" >"$work/stdout" 2>"$work/stderr" || status=$?
  if ((status != 0)) || [[ -s $work/stderr ]]; then fail "$*: exit $status: $(head -c 500 "$work/stderr")"; fi
  grep -qF -- "$text" "$work/stdout" || fail "$*: does not say: $text"
}

echo "== help"
for command in "$muster" "$muster help" "$muster --help"; do
  # shellcheck disable=SC2086
  says 'Usage: muster' $command
  for name in plan presets bench verify simulate train tune info help; do
    grep -qE "^  $name  " "$work/stdout" || fail "$command does not list $name"
  done
done
for name in plan presets bench verify simulate train tune info; do
  says "Usage: muster $name" "$muster" help "$name"
  "$muster" "$name" --help >"$work/flag"
  cmp -s "$work/flag" "$work/stdout" || fail "muster help $name is not muster $name --help"
done

echo "== misspelt words"
refuses 2 "'pln' is not a command; did you mean 'plan'?" "$muster" pln gpt2-small
refuses 2 "'bnech' is not a command; did you mean 'bench'?" "$muster" help bnech
refuses 2 "'frobnicate' is not a command; see muster help" "$muster" frobnicate
refuses 2 "--scrach-mib: muster plan has no such flag; did you mean '--scratch-mib'?" \
  "$muster" plan gpt2-small --ranks 2 --scrach-mib 5
refuses 2 "did you mean '--strategy'?" "$muster" bench gpt2-small --ranks 2 --stratgey=global
refuses 2 "did you mean '--cluster'?" "$muster" simulate gpt2-small --ranks 2 --clsuter h100-ib
refuses 2 '--frobnicate: muster plan has no such flag' "$muster" plan gpt2-small --ranks 2 --frobnicate
refuses 2 "--vresion: muster has no such flag; did you mean '--version'?" "$muster" --vresion
refuses 2 "did you mean 'gpt2-small'?" "$muster" plan gtp2-small --ranks 2
refuses 2 "axis 'dp' of mesh 'world'; the axes that the model knows: ep, fsdp, replicate, tp" \
  "$muster" plan moe-397b --mesh dp=2
refuses 2 'fsdp and replicate' "$muster" train --mesh dp=2
echo '{"rules": [{"match": "h.*.atn.*", "algorithm": "muon"}]}' >"$work/rules.txt"
refuses 2 "rule 'h.*.atn.*': matches no parameter" "$muster" plan gpt2-small --ranks 2 --rules "$work/rules.txt"
echo '{"rules": [{"match": "h.*.atn.*", "optional": true, "algorithm": "muon"}]}' >"$work/rules.txt"
says 'gpt2-small on 2 ranks' "$muster" plan gpt2-small --ranks 2 --rules "$work/rules.txt"
echo '{"rules": [{"match": "h.11.*", "skip": true}]}' >"$work/rules.txt"
says 'gpt2-small on 2 ranks' "$muster" plan gpt2-small --ranks 2 --layers 2 --rules "$work/rules.txt"

echo "== presets"
gives presets "$muster" presets --json
holds 'len(presets["presets"]) >= 6 and all(p["name"] and p["source"] for p in presets["presets"])'
for name in $("$muster" presets | cut -d' ' -f1); do
  gives known "$muster" plan "$name" --mesh replicate=2 --layers 2 --json
done

echo "== one of each"
echo '{"name": "one", "parameters": [{"name": "w", "shape": [4, 4], "placements": {"fsdp": "shard(0)"}}]}' >"$work/one.model"
says 'one on 1 rank, strategy global' "$muster" plan "$work/one.model" --ranks 1
says '1 parameter, 16 elements, 1 matrix' "$muster" plan "$work/one.model" --ranks 1
says '16 elements' "$muster" plan "$work/one.model" --ranks 1 --explain w
says '1 matrix' "$muster" plan "$work/one.model" --ranks 1 --explain w
says 'one on 1 rank (local), 1 thread each: medians of 1 step' "$muster" bench "$work/one.model" --ranks 1 --steps 1
says 'one on 1 rank (local), 1 step, compared' "$muster" verify "$work/one.model" --ranks 1 --steps 1
says '1 matrix, 0 elements of AdamW and Lion' "$muster" verify "$work/one.model" --ranks 1 --steps 1
says 'one on 1 rank of gb300' "$muster" simulate "$work/one.model" --ranks 1 --cluster gb300
says '1 layer of width 16, 1 head, 2 tokens per sequence' \
  "$muster" train --layers 1 --width 16 --heads 1 --context 2 --steps 1 --batch 8

echo "== a model that does not fit into memory"
# It filled the memory until the kernel killed it.
for command in bench verify; do
  refuses 2 "$command 'moe-397b': 2 ranks need" "$muster" "$command" moe-397b --ranks 2
  refuses 2 'plan and simulate need no memory' "$muster" "$command" moe-397b --mesh replicate=8
done
cat >"$work/deep.model" <<'JSON'
{"name": "deep", "parameters": [
  {"name": "l.{}.w", "layers": 20000, "shape": [4096, 4096], "placements": {"fsdp": "shard(0)"}}
]}
JSON
for command in bench verify; do
  refuses 2 "$command 'deep': 2 ranks need" "$muster" "$command" "$work/deep.model" --ranks 2 --strategy chunked
  layers=$(sed -n 's/.*; --layers \([0-9]*\) fits.*/\1/p' "$work/stderr")
  if [[ -z $layers ]] || ((layers < 1 || layers >= 20000)); then fail "no layers that fit: $(cat "$work/stderr")"; fi
done
refuses 2 '--layers 1000, --width 16384, --slots 8' "$muster" train --layers 1000 --width 16384 --heads 8
if has_mpi; then
  refuses 2 "bench 'moe-397b'" on 2 "$muster" bench moe-397b --ranks 2
fi

echo "== no terminal escapes in files"
# Open MPI gives the processes a terminal, whatever its own output is.
if has_mpi; then
  for command in "plan $work/one.model --ranks 1" "bench $small --ranks 1 --strategy global" \
    "verify $small --ranks 1 --strategy global" "tune -o $work/cost.json"; do
    # shellcheck disable=SC2086
    on 1 "$muster" $command >"$work/stdout" 2>"$work/stderr" || fail "mpirun muster $command"
    grep -q $'\x1b' "$work/stdout" "$work/stderr" && fail "mpirun muster $command: escapes in a file"
  done
fi

finish
