#!/usr/bin/env bash
# `muster verify` on a GPU. Usage: verify.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/../support/checks.sh"
needs_gpu

# Shapes whose products are whole tiles and not, in the standard and the Gram form.
cat >"$work/wide.model" <<'JSON'
{
  "name": "wide",
  "defaults": {"placements": {"fsdp": "shard(0)", "replicate": "replicate"}},
  "parameters": [
    {"name": "l.{}.square", "layers": 2, "shape": [256, 256], "norm_axis": "rows"},
    {"name": "l.{}.tall", "layers": 2, "shape": [520, 128], "algorithm": "muon"},
    {"name": "l.{}.wide", "layers": 2, "shape": [136, 600], "dtype": "bf16"},
    {"name": "embed", "shape": [301, 64], "algorithm": "adamw"}
  ]
}
JSON
sed 's/"name": "small",/"name": "sync", "grad_sync": true,/' "$small" >"$work/sync.model"
right="['bitwise_equal'] and 0 < got['max_error'] < got['tolerance'] and got['device'] == 'cuda'"

echo "== one rank, recorded and not, with all gradients and without some"
gives got "$muster" verify "$small" --ranks 1 --device cuda --strategy global --waves 0,2 --json
holds "got$right and got['cases'] == 8"
holds '{(c["graph"], c["missing"]) for c in got["case_table"]} == {(g, m) for g in (0, 1) for m in (0, 1)}'
for coefficients in polar_express polar_express_safe polar_express_tight capped3 capped4 jordan; do
  gives got "$muster" verify "$work/wide.model" --ranks 1 --device cuda --strategy global --waves 2 \
    --coefficients "$coefficients" --json
  holds "got$right or print('$coefficients')"
done

echo "== awkward spectra, recorded and not"
for coefficients in polar_express polar_express_tight capped3 capped4; do
  gives got "$muster" verify "$work/wide.model" --ranks 1 --layers 1 --device cuda --strategy global --waves 2 \
    --spectrum all --missing off --coefficients "$coefficients" --json
  holds "got$right and got['cases'] == 14"
  holds '{(c["spectrum"], c["graph"]) for c in got["case_table"]} >= {(s, g) for s in ("steep", "equal") for g in (0, 1)}'
  holds "all(0 < e['max_error'] < e['tolerance'] for e in got['errors']) or print('$coefficients', got['errors'])"
done

echo "== ranks as threads that share the GPU, exchanges through the host"
for mesh in fsdp=2 fsdp=3 replicate=2,fsdp=2; do
  for model in "$small" "$work/sync.model"; do
    gives got "$muster" verify "$model" --mesh "$mesh" --device cuda --layers 1 --waves 0,2 --json
    holds "got$right and not any(c['graph'] for c in got['case_table']) or print('$mesh')"
  done
done

echo "== ranks of mpirun"
if has_mpi && has_nccl; then
  for ranks in 1 3; do
    gives got on "$ranks" "$muster" verify "$work/wide.model" --ranks "$ranks" --device cuda --waves 0,2 --json
    holds "got$right and got['comm'] == 'nccl' and any(c['graph'] for c in got['case_table']) or print($ranks)"
    for coefficients in capped3 capped4; do
      gives got on "$ranks" "$muster" verify "$work/wide.model" --ranks "$ranks" --layers 1 --device cuda --waves 0,2 \
        --strategy global,chunked --spectrum steep --coefficients "$coefficients" --json
      holds "got$right and got['comm'] == 'nccl' or print($ranks, '$coefficients')"
    done
  done
  # Small models: ranks that share a GPU wait for their turns, however little there is to do.
  for layout in "2 tp=2 $small" "3 tp=3 $small" "3 ep=3 $experts" "4 fsdp=2,tp=2 $small" \
    "4 fsdp=2,ep=2 $experts" "4 replicate=2,fsdp=2 $small"; do
    read -r ranks mesh model <<<"$layout"
    gives got on "$ranks" "$muster" verify "$model" --mesh "$mesh" --layers 1 --device cuda --waves 0,2 --json
    holds "got$right and got['comm'] == 'nccl' and got['ranks'] == $ranks and got['cases'] >= 24 or print('$mesh')"
    holds '{(c["graph"], c["missing"]) for c in got["case_table"]} == {(g, m) for g in (0, 1) for m in (0, 1)}'
  done
  gives got on 3 "$muster" verify "$work/sync.model" --mesh replicate=3 --device cuda --strategy global --json
  holds "got$right"
  gives got on 2 "$muster" verify "$small" --ranks 2 --device cuda --comm mpi --strategy global --waves 0 --json
  holds "got$right and got['comm'] == 'mpi'"
  refuses 2 '4 ranks, but mpirun started 2' on 2 "$muster" verify "$small" --ranks 4 --device cuda
else
  echo "skipped: no MPI or no NCCL"
fi

echo "== bad input"
refuses 2 '--graph' "$muster" verify "$small" --ranks 1 --device cuda --graph perhaps
refuses 2 '--comm' "$muster" verify "$small" --ranks 1 --device cuda --comm pigeon
if ! has_nccl; then refuses 2 '--comm' "$muster" verify "$small" --ranks 1 --device cuda --comm nccl; fi

finish
