#!/usr/bin/env bash
# The commands of docs/lab/four-changes-points-2026-11.md run, and show what the page says of them.
# Usage: four_changes.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

mkdir "$work/bin"
ln -s "$(realpath "$muster")" "$work/bin/muster"
cd "$work"
PATH="$work/bin:$PATH" bash "$root/examples/docs/four_changes.sh" >"$work/printed" || fail "examples/docs/four_changes.sh"
says() {
  grep -qE -- "$1" "$work/printed" || fail "examples/docs/four_changes.sh does not print '$1'"
}
says '72 collectives in 36 rounds'
says '6 collectives in 3 rounds'
says '2 collectives in 1 round'
says '10 collectives in 5 rounds, 4 in flight'
says '8 collectives in 4 rounds, 3 in flight'
says '^ +0 +0 +ragged +2\.52 GiB'
says '^ +1 +1\+7 '
says '^ +2 +10\+6 '
says "mix 'blocks.10.attn.qkvo_w' and 'blocks.1.mlp.c_fc' in the group of 32"
says '^step +20 +loss'
says '^3 runs: loss .* \(standard deviation'
says '"held_out_mean"'
says '^  49 in all +268,665,626 +73'
says ' 549 tensors of zeros per rank'
says ' 46,245 tensors of zeros per rank'
[ "$(grep -c '^held-out loss' "$work/printed")" = 7 ] || fail "not 7 held-out losses"
for page in runs parameters; do [ -s "$page.html" ] || fail "no $page.html"; done
# EP 8 over EP 1 is what the page compares with 2.08.
ratio=$(awk '$1 == "routed" { ms[n++] = $4 } END { printf "%.2f", ms[1] / ms[0] }' "$work/printed")
[ "$ratio" = 1.69 ] || fail "EP 8 / EP 1: $ratio"
finish
