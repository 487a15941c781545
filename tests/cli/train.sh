#!/usr/bin/env bash
# The contract of `muster train`. Usage: train.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

# A model that takes no time.
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 8 --slots 4 --steps 5)

echo "== what it prints"
gives one "$muster" train "${tiny[@]}" --json
holds 'not {"losses", "final_loss", "unigram_entropy", "tokens_per_s", "optimizer_share"} - set(one)'
holds 'len(one["losses"]) == 5 and one["losses"][4] < one["losses"][0] and one["final_loss"] < one["losses"][0]'
holds 'abs(one["unigram_entropy"] - 3.3128) < 1e-4 and one["tokens_per_s"] > 0 and 0 < one["optimizer_share"] < 1'
table=$("$muster" train "${tiny[@]}" --ranks 2)
for part in '1 layer of width 16' 'normuon in f32' 'fsdp=2 (local)' 'step     1' 'step     5' 'held-out loss' '3.3128' 'tokens/s'; do
  grep -qF -- "$part" <<<"$table" || fail "the text lacks: $part"
done

echo "== the same losses on any ranks"
same() {
  gives other "$muster" train "${tiny[@]}" --json "$@"
  holds 'other["losses"] == one["losses"] and other["final_loss"] == one["final_loss"]'
}
same --ranks 4
same --mesh replicate=3
same --mesh replicate=2,fsdp=2 --threads 2
same --ranks 3 --strategy per_matrix
same --ranks 2 --waves 2 --wave-order small_last --elementwise last
if has_mpi; then
  gives mpi on 3 "$muster" train "${tiny[@]}" --json
  holds 'mpi["comm"] == "mpi" and mpi["mesh"] == "fsdp=3" and mpi["losses"] == one["losses"]'
else
  echo "skipped: no MPI"
fi

echo "== every option"
for options in '--optimizer muon' '--optimizer adamw' '--normuon mlp' '--attention fused' '--attention shared' \
  '--mlp gelu' '--tied on' '--gates off' '--residual-scale off' '--decay plain --weight-decay 0.1' '--dtype bf16' \
  '--dtype bf16 --bf16-weights mantissa' '--wire f32' '--seed 7' '--lr 0.01 --adamw-lr 0.001' '--coefficients jordan'; do
  # shellcheck disable=SC2086 # several words
  gives other "$muster" train "${tiny[@]}" $options --ranks 2 --json
  holds 'other["losses"][4] < other["losses"][0] and other["recipe"] != one["recipe"]'
done
printf 'to be or not to be %.0s' {1..40} >"$work/text"
gives other "$muster" train "${tiny[@]}" --text "$work/text" --json
holds 'other["unigram_entropy"] < 2.3'

echo "== variants of modded-nanogpt #168, and schedules"
for options in '--schedule cosine' '--schedule cooldown --cooldown 0.4 --final-lr 0.1 --extension 2' '--gate-axis longer' \
  '--wo-axis columns' '--attention shared --wo-axis columns' '--attention-lr-mul 2 --down-lr-mul 4' '--up-lr-mul 2' \
  '--step-scale none' '--residual-scale after'; do
  # shellcheck disable=SC2086 # several words
  gives other "$muster" train "${tiny[@]}" $options --json
  holds 'other["losses"] != one["losses"] and other["losses"][-1] < other["losses"][0]'
  # shellcheck disable=SC2086
  gives more "$muster" train "${tiny[@]}" $options --ranks 3 --json
  holds 'more["losses"] == other["losses"] and more["final_loss"] == other["final_loss"]'
done
schedule=(--schedule cooldown --final-lr 0.1 --extension 3)
gives whole "$muster" train "${tiny[@]}" "${schedule[@]}" --eval-every 2 --json
holds 'len(whole["losses"]) == 8 and [h["step"] for h in whole["held_out"]] == [0, 2, 4, 6, 8]'
holds 'whole["held_out"][-1]["loss"] == whole["final_loss"]'
gives half "$muster" train "${tiny[@]}" "${schedule[@]}" --eval-every 2 --until 6 --save "$work/cooling" --ranks 2 --json
gives resumed "$muster" train --resume "$work/cooling" --eval-every 2 --json
holds 'resumed["losses"] == whole["losses"] and resumed["held_out"] == whole["held_out"]'
refuses 2 '--schedule: cosine, but the checkpoint has cooldown' "$muster" train --resume "$work/cooling" --schedule cosine
grep -qF 'held-out loss' <<<"$("$muster" train "${tiny[@]}" --eval-every 3)" || fail "no held-out loss on the way"

echo "== every row of scripts/ablation"
"$(dirname "$0")/../../scripts/ablation" --muster "$muster" --seeds 1 --steps 1 \
  --flags '--layers 1 --width 8 --heads 2 --context 8 --batch 2 --slots 2' >/dev/null || fail "a row that train refuses"

echo "== checkpoints"
gives half "$muster" train "${tiny[@]}" --ranks 3 --until 2 --save "$work/saved" --json
holds 'half["losses"] == one["losses"][:2]'
gives resumed "$muster" train --resume "$work/saved" --ranks 2 --json
holds 'resumed["losses"] == one["losses"] and resumed["final_loss"] == one["final_loss"] and resumed["first_step"] == 2'
refuses 2 '--width: 32, but the checkpoint has 16' "$muster" train --resume "$work/saved" --width 32
refuses 2 '--text' "$muster" train --resume "$work/saved" --text "$work/text"
refuses 2 '--resume' "$muster" train --resume "$work/none"
"$muster" train --resume "$work/saved" --until 5 --save "$work/again" --report "$work/done.html" >/dev/null
gives finished "$muster" train --resume "$work/again" --save "$work/copy" --report "$work/done.html" --json
holds 'finished["losses"] == one["losses"] and finished["first_step"] == 5'
gives copied "$muster" train --resume "$work/copy" --json
holds 'copied["final_loss"] == one["final_loss"]'
refuses 2 '--until: 2, but the checkpoint has made 5 steps' "$muster" train --resume "$work/copy" --until 2
mkdir "$work/broken"
echo '{' >"$work/broken/train.json"
refuses 2 '--save: ' "$muster" train "${tiny[@]}" --save "$work/broken"
refuses 2 '2000 ranks: as threads at most 1024' "$muster" train "${tiny[@]}" --ranks 2000
# A folder of someone else that has the name of ours was deleted.
mkdir -p "$work/theirs/state-b"
echo mine >"$work/theirs/state-b/notes"
"$muster" train "${tiny[@]}" --save-every 1 --save "$work/theirs" >/dev/null
[[ $(cat "$work/theirs/state-b/notes") == mine ]] || fail "--save touched a file of someone else"
mkdir "$work/other"
cp -r "$work"/copy/state-? "$work/other/state-b"
refuses 2 'state-b' "$muster" train "${tiny[@]}" --save "$work/other"
[[ -e $work/other/state-b/muster.index.json ]] || fail "--save removed a checkpoint of someone else"
# Broken text of five megabytes came back whole.
python3 -c 'print("{\"format\": \"" + "x" * 5_000_000 + "\", \"version\": 1}")' >"$work/broken/train.json"
refuses 2 "xxx...' of version 1" "$muster" train --resume "$work/broken"
(($(wc -c <"$work/stderr") < 1000)) || fail "the error has $(wc -c <"$work/stderr") bytes"
# A full disk exited with 2, as if a flag were wrong. Here a file must not grow past 8 KiB.
on_full_disk() { (trap '' XFSZ && ulimit -f 8 && "$@"); }
refuses 1 'File too large' on_full_disk "$muster" train "${tiny[@]}" --json --save "$work/full"
rm "$work"/saved/state-?/muster.index.json
refuses 2 'muster.index.json' "$muster" train --resume "$work/saved"

echo "== reports, and other trainings beside"
"$muster" train "${tiny[@]}" --json >"$work/one.json"
"$muster" train "${tiny[@]}" --seed 9 --json >"$work/nine.json"
text=$("$muster" train "${tiny[@]}" --ranks 2 --html "$work/report.html" --compare "$work/one.json,$work/nine.json")
for part in 'compared with fsdp=1, global (one): the same losses, bit for bit' 'compared with fsdp=1, global (nine): other losses from step 1 on' \
  "report: $work/report.html"; do
  grep -qF -- "$part" <<<"$text" || fail "the text lacks: $part"
done
grep -q 'A small GPT learns on 2 ranks' "$work/report.html" || fail "the report has no title"
"$muster" train "${tiny[@]}" --ranks 2 --wave-order small_last --report "$work/ordered.html" >/dev/null
grep -q '"chunked"' "$work/ordered.html" || fail "the report has no other strategies"
gives other "$muster" train "${tiny[@]}" --ranks 2 --compare "$work/one.json" --json
holds 'other["same_losses"] is True'
refuses 2 '--compare' "$muster" train "${tiny[@]}" --compare "$work/none.json"
refuses 2 'is not what `muster train --json` prints' "$muster" train "${tiny[@]}" --compare "$work/report.html"
gives other "$muster" train "${tiny[@]}" --ranks 2 --trace "$work/steps.json" --json
holds '{"forward and backward", "gather weights"} <= {e["name"] for e in steps["traceEvents"]}'
holds '{e["pid"] for e in steps["traceEvents"]} == {0, 1}'
refuses 2 '--trace' "$muster" train "${tiny[@]}" --trace "$work/none/steps.json"
refuses 2 '--html' "$muster" train "${tiny[@]}" --html "$work/none/report.html"

echo "== several runs"
gives runs "$muster" train "${tiny[@]}" --runs 3 --target 4.2 --json
holds 'not {"mean", "std", "p", "time_mean", "time_std"} - set(runs)'
holds 'len(runs["runs"]) == 3 and runs["runs"][0]["losses"] == one["losses"]'
holds 'len({r["final_loss"] for r in runs["runs"]}) == 3 and 0 < runs["std"] < 1'
holds 'abs(sum(r["final_loss"] for r in runs["runs"]) / 3 - runs["mean"]) < 1e-12 and 0 < runs["p"] < 1'
gives curve "$muster" train "${tiny[@]}" --runs 3 --eval-every 2 --json --report "$work/runs.html"
holds '[h["step"] for h in curve["held_out_mean"]] == [0, 2, 4, 5]'
holds 'all(abs(sum(r["held_out"][i]["loss"] for r in curve["runs"]) / 3 - h["mean"]) < 1e-12 for i, h in enumerate(curve["held_out_mean"]))'
holds 'all(h["std"] > 0 for h in curve["held_out_mean"]) and runs["held_out_mean"] == []'
grep -q 'Held-out loss' "$work/runs.html" || fail "the report has no held-out losses"
grep -q '± standard deviation' "$work/runs.html" || fail "the report has no band"
gives untested "$muster" train "${tiny[@]}" --runs 2 --json
holds 'untested["p"] is None and untested["mean"] > 0'
! grep -q nan <<<"$("$muster" train "${tiny[@]}" --runs 1)" || fail "a deviation of one run"
grep -qF 'p = ' <<<"$("$muster" train "${tiny[@]}" --runs 2 --target 4.2)" || fail "no p"

echo "== bad input"
refuses 2 '--ranks' "$muster" train --ranks 0
refuses 2 '--ranks 2 and --mesh' "$muster" train --ranks 2 --mesh fsdp=2
refuses 2 "--mesh: 'tp'" "$muster" train "${tiny[@]}" --mesh tp=2
refuses 2 "--optimizer: 'sgd'" "$muster" train --optimizer sgd
refuses 2 '--attention' "$muster" train --attention latent
refuses 2 "--gates: 'yes'" "$muster" train --gates yes
refuses 2 '--heads: 3' "$muster" train --heads 3
refuses 2 '--slots: 5' "$muster" train --slots 5
refuses 2 '--steps' "$muster" train --steps 0
refuses 2 "--schedule: 'step'" "$muster" train --schedule step
refuses 2 '--cooldown: 0.2 is for --schedule cooldown' "$muster" train --cooldown 0.2
refuses 2 '--extension: 40 steps at --final-lr 0' "$muster" train --extension 40
refuses 2 '--eval-every' "$muster" train --eval-every 0
refuses 2 "--wo-axis: 'longer'" "$muster" train --wo-axis longer
refuses 2 '--down-lr-mul: -1' "$muster" train --down-lr-mul=-1
refuses 2 "--lr: 'fast'" "$muster" train --lr fast
refuses 2 '--lr: -1' "$muster" train --lr=-1
refuses 2 '--coefficients' "$muster" train --coefficients none
refuses 2 '--strategy' "$muster" train --strategy fastest
refuses 2 '--strategy' "$muster" train --strategy global,chunked
refuses 2 '--wave-order' "$muster" train --wave-order large_first
refuses 2 '--elementwise last: is for --strategy global' "$muster" train --elementwise last --strategy chunked
refuses 2 '--target' "$muster" train --target 3
refuses 2 "--target: 'low'" "$muster" train --runs 2 --target low
refuses 2 '--runs' "$muster" train --runs none
refuses 2 '--save' "$muster" train --runs 2 --save "$work/saved"
refuses 2 '--save-every' "$muster" train --save-every 5
refuses 2 '--save' "$muster" train "${tiny[@]}" --save /proc/none
refuses 2 '--until' "$muster" train --until 0
refuses 2 '--text' "$muster" train --text "$work/none"
refuses 2 '--text' "$muster" train --text "$work/text" --context 500
refuses 2 '--device' "$muster" train --device cuda
refuses 1 'the loss is' "$muster" train "${tiny[@]}" --lr 1e6 --adamw-lr 1e6 --weight-decay 1e6 --decay plain --json

finish
