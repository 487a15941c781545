#!/usr/bin/env bash
# Every row of scripts/ablation must be flags that `muster train` takes, and the fused row must be read from step_bench.
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
if scripts/ablation --muster "$work/muster" --only nothing 2>"$work/error"; then exit 1; fi
grep -qF "'nothing' is none of baseline" "$work/error"
echo "ablation: every row is there"
