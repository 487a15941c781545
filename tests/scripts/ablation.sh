#!/usr/bin/env bash
# scripts/ablation prints every row, and says in one line what is wrong. tests/cli/ablation.sh runs it with the real programs.
# Usage: ablation.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints what a training does, and keeps its flags.
cat >"$work/muster" <<'MUSTER'
#!/usr/bin/env bash
echo "$*" >>"$(dirname "$0")/flags"
echo '{"seconds": 2, "optimizer_share": 0.5, "final_loss": 1.25}'
MUSTER
cat >"$work/step_bench" <<'BENCH'
#!/usr/bin/env bash
echo '{"ways": [{"name": "usual way", "seconds": [2.5, 3]}, {"name": "usual way, fused", "seconds": [2.75, 2.25]}]}'
BENCH
chmod +x "$work/muster" "$work/step_bench"
scripts/ablation --muster "$work/muster" --seeds 2 --steps 3 --step-bench "$work/step_bench" >"$work/table"
for row in 'baseline' 'gates by row' 'W_O by column' 'residual scale in the weights of W_O' 'x2 for attention, x4 for MLP down' \
  'no multiplier by shape' '| fused momentum, normalization and apply (a step of step_bench) | 2.250 | -0.250'; do
  grep -qF -- "$row" "$work/table" || { echo "ablation: no row $row" >&2; exit 1; }
done
for flags in '--residual-scale after' '--residual-scale on' '--attention-lr-mul 2 --down-lr-mul 4' '--wo-axis columns' '--seed 2'; do
  grep -qF -- "$flags" "$work/flags" || { echo "ablation: no training with $flags" >&2; exit 1; }
done

# They ended in a traceback, or the training's own error was lost.
refuses() {
  if scripts/ablation "${@:2}" >"$work/table" 2>"$work/error"; then echo "ablation ${*:2}: exit 0" >&2; exit 1; fi
  if grep -q Traceback "$work/error" || ! grep -qF -- "$1" "$work/error"; then
    echo "ablation ${*:2}: no '$1' in: $(cat "$work/error")" >&2
    exit 1
  fi
}
printf '#!/bin/sh\necho "muster: error: --nothing: no such flag" >&2; exit 2\n' >"$work/fails"
chmod +x "$work/fails"
refuses "'nothing' is none of baseline" --muster "$work/muster" --only nothing
refuses "'muon' is first" --muster "$work/muster" --only muon
refuses '--seeds: 0' --muster "$work/muster" --only baseline --seeds 0
refuses "--muster: there is no program '$work/none'; \`make build\`" --muster "$work/none" --only baseline
refuses "--step-bench: there is no program '$work/none'; \`cmake --build build --target step_bench\`" \
  --muster "$work/muster" --step-bench "$work/none --rounds 1"
refuses 'exit status 2: muster: error: --nothing' --muster "$work/fails" --only baseline
echo "ablation: every row is there"
