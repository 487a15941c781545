#!/usr/bin/env bash
# Every row of scripts/ablation runs with the programs of this build: trainings of two steps, and a small step_bench.
# Usage: ablation.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

bench=$(dirname "$muster")/../benchmarks/step_bench
rows=$(python3 -c 'import runpy, sys; print(",".join(runpy.run_path(sys.argv[1])["CHANGES"]))' "$root/scripts/ablation")
if [[ ! -x $bench ]]; then
  echo "without the row of step_bench, which is not built (MUSTER_BENCHMARKS=OFF)"
  rows=${rows/fused,/}
fi
small='--layers 1 --width 32 --heads 2 --context 16 --batch 8 --slots 2 --threads 1'
"$root/scripts/ablation" --muster "$muster" --step-bench "$bench --width 96 --rounds 1 --threads 1" --seeds 2 --steps 2 --ranks 2 \
  --only "$rows" --flags "$small" >"$work/table" || fail "scripts/ablation: exit $?"
wanted=$(tr ',' '\n' <<<"$rows" | wc -l)
found=$(tail -n +3 "$work/table" | grep -c '^| .* | [0-9.]* | .*|$') || true
((found == wanted)) || fail "$found of $wanted rows: $(cat "$work/table")"
losses=$(grep -cE '\| [0-9]+\.[0-9]{4} [0-9]+\.[0-9]{4} \|' "$work/table") || true
if [[ $rows == *fused,* ]]; then ((wanted--)) || true; fi
((losses == wanted)) || fail "$losses of $wanted rows have two losses: $(cat "$work/table")"
finish
