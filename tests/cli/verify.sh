#!/usr/bin/env bash
# The contract of `muster verify`. Usage: verify.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

echo "== what it prints"
gives plain "$muster" verify "$small" --ranks 3 --json
holds 'not {"cases", "bitwise_equal", "max_error", "tolerance"} - set(plain)'
holds 'plain["cases"] == 11 and plain["bitwise_equal"] is True and 0 < plain["max_error"] < plain["tolerance"]'
holds 'len(plain["case_table"]) == 11 and plain["reference_matrices"] == 16'
gives exact "$muster" verify "$small" --ranks 3 --wire f32 --strategy global --waves 2 --json
holds 'exact["cases"] == 1 and exact["tolerance"] < plain["tolerance"] and exact["max_error"] < exact["tolerance"]'
table=$("$muster" verify "$small" --ranks 2 --steps 3 --strategy global,megabatch)
for part in 'small on 2 ranks (local), 3 steps' 'megabatch' 'tolerance'; do
  grep -qF -- "$part" <<<"$table" || fail "the table lacks: $part"
done

echo "== meshes"
for mesh in fsdp=1 fsdp=5 fsdp=8 fsdp=2,tp=2 tp=3,fsdp=2 replicate=3 replicate=2,fsdp=3; do
  gives mesh "$muster" verify "$small" --mesh "$mesh" --layers 1 --json
  holds "mesh['bitwise_equal'] and mesh['max_error'] < mesh['tolerance'] and mesh['cases'] > 8 or print('$mesh')"
done
gives tp "$muster" verify "$small" --mesh tp=3 --json
holds 'tp["bitwise_equal"] and tp["max_error"] < tp["tolerance"] and tp["cases"] > 8'
for mesh in ep=3 ep=4 fsdp=2,ep=2 replicate=2,ep=2 tp=2,ep=2; do
  gives mesh "$muster" verify "$experts" --mesh "$mesh" --missing off,on --steps 3 --json
  holds "mesh['bitwise_equal'] and mesh['max_error'] < mesh['tolerance'] and mesh['cases'] > 16 or print('$mesh')"
done
sed 's/"name": "small",/"name": "sync", "grad_sync": true,/' "$small" >"$work/sync.model"
gives sync "$muster" verify "$work/sync.model" --mesh replicate=3 --json
holds 'sync["bitwise_equal"] and sync["max_error"] < sync["tolerance"]'
gives threads "$muster" verify "$small" --ranks 2 --threads 2 --strategy global --json
holds 'threads["bitwise_equal"] and threads["max_error"] == plain["max_error"]'
gives moe "$muster" verify "$root/examples/models/moe-vision.json" --layers 1 --strategy global --waves 0,3 --json
holds 'moe["bitwise_equal"] and moe["ranks"] == 8 and moe["max_error"] < moe["tolerance"]'

echo "== gradients that are missing, on all ranks or some"
gives both "$muster" verify "$small" --ranks 3 --strategy global,megabatch --waves 0,2 --steps 5 --missing off,on --json
holds 'both["cases"] == 6 and both["bitwise_equal"] and both["max_error"] < both["tolerance"]'
holds '[c["missing"] for c in both["case_table"]] == [False] * 3 + [True] * 3'
for mesh in fsdp=2,tp=2 replicate=2,fsdp=2; do
  for model in "$small" "$work/sync.model"; do
    gives some "$muster" verify "$model" --mesh "$mesh" --layers 1 --steps 6 --missing on --json
    holds "some['bitwise_equal'] and some['max_error'] < some['tolerance'] and some['cases'] > 8 or print('$mesh')"
  done
done
for coefficients in polar_express_safe polar_express_tight capped3 capped4; do
  gives other "$muster" verify "$small" --ranks 2 --strategy global --waves 1 --coefficients "$coefficients" --json
  holds "other['bitwise_equal'] and other['max_error'] < other['tolerance'] or print('$coefficients')"
done

echo "== gradients with awkward spectra"
for wire in f32 bf16; do
  gives spectra "$muster" verify "$small" --ranks 3 --strategy global,megabatch --waves 2 --spectrum all --wire "$wire" \
    --json
  holds 'spectra["cases"] == 14 and spectra["bitwise_equal"] and len(spectra["errors"]) == 7'
  holds "all(0 < e['max_error'] < e['tolerance'] for e in spectra['errors']) or print('$wire', spectra['errors'])"
  holds '[c["spectrum"] for c in spectra["case_table"]][::2] == [e["spectrum"] for e in spectra["errors"]]'
done
for mesh in fsdp=2,tp=2 fsdp=2,ep=2 replicate=2,fsdp=2; do
  gives some "$muster" verify "$experts" --mesh "$mesh" --steps 3 --missing on --spectrum steep,low_rank --wire f32 \
    --coefficients polar_express_tight --json
  holds "some['bitwise_equal'] and some['max_error'] < some['tolerance'] and some['cases'] > 16 or print('$mesh')"
done
for coefficients in capped3 capped4; do
  for wire in f32 bf16; do
    gives some "$muster" verify "$small" --ranks 2 --strategy global --waves 1 --spectrum all --wire "$wire" \
      --coefficients "$coefficients" --json
    holds "some['bitwise_equal'] and all(e['max_error'] < e['tolerance'] for e in some['errors']) or print('$coefficients')"
  done
done
gives average "$muster" verify "$work/sync.model" --mesh replicate=2,fsdp=2 --strategy global \
  --spectrum outliers,equal --json
holds 'average["bitwise_equal"] and average["max_error"] < average["tolerance"]'

echo "== over MPI"
if has_mpi; then
  for ranks in 1 2 4; do
    gives mpi on "$ranks" "$muster" verify "$small" --mesh "fsdp=$ranks" --json
    holds "mpi['comm'] == 'mpi' and mpi['ranks'] == $ranks and mpi['bitwise_equal'] and mpi['cases'] > 8"
    holds 'mpi["max_error"] == plain["max_error"]'
    gives flights on "$ranks" "$muster" verify "$small" --mesh "fsdp=$ranks" --strategy global --waves 4 --in-flight 1,2,all --json
    holds 'flights["bitwise_equal"] and flights["cases"] == 3'
  done
  gives mpi on 4 "$muster" verify "$experts" --mesh fsdp=2,ep=2 --missing on --spectrum normal,low_rank --json
  holds 'mpi["ranks"] == 4 and mpi["bitwise_equal"] and mpi["max_error"] < mpi["tolerance"] and mpi["cases"] > 16'
  refuses 2 '4 ranks, but mpirun started 2' on 2 "$muster" verify "$small" --ranks 4
  refuses 2 '4 ranks, but mpirun started 1' on 1 "$muster" verify "$small" --ranks 4
  refuses 2 '--steps' on 2 "$muster" verify "$small" --ranks 2 --steps x
  refuses 2 'local' on 2 "$muster" verify "$small" --ranks 2 --comm local
  refuses 2 'mpirun started 1' env ASAN_OPTIONS=detect_leaks=0 "$muster" verify "$small" --ranks 2 --comm mpi
  # One rank alone cannot read its model; one rank alone takes another step. Either ends all.
  cat >"$work/uneven" <<'SH'
#!/bin/sh
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec "$@" $ODD; fi
exec "$@"
SH
  chmod +x "$work/uneven"
  ODD=--rules=missing.txt refuses 2 missing.txt on 2 "$work/uneven" "$muster" verify "$small" --ranks 2
  ODD=--steps=3 refuses 1 '' on 2 "$work/uneven" "$muster" verify "$small" --ranks 2
else
  echo "skipped: no MPI"
fi

echo "== bad input"
refuses 2 '--strategy' "$muster" verify "$small" --ranks 2 --strategy fastest
refuses 2 'twice' "$muster" verify "$small" --ranks 2 --strategy global,global
refuses 2 '--waves' "$muster" verify "$small" --ranks 2 --waves 1,x
refuses 2 '--waves' "$muster" verify "$small" --ranks 2 --waves 2 --strategy megabatch
refuses 2 '--steps' "$muster" verify "$small" --ranks 2 --steps 0
refuses 2 '--wire' "$muster" verify "$small" --ranks 2 --wire f16
refuses 2 '--comm' "$muster" verify "$small" --ranks 2 --comm pigeon
refuses 2 'is for --device cuda' "$muster" verify "$small" --ranks 2 --comm nccl
refuses 2 "--device: 'tpu'" "$muster" verify "$small" --ranks 2 --device tpu
refuses 2 "--device: 'tpu'" "$muster" verify "$small" --ranks 2 --device tpu --comm nccl
refuses 2 '--graph' "$muster" verify "$small" --ranks 2 --graph on
refuses 2 '--graph' "$muster" verify "$small" --ranks 2 --graph maybe
refuses 2 '--missing' "$muster" verify "$small" --ranks 2 --missing on,on
refuses 2 "--spectrum: 'flat'" "$muster" verify "$small" --ranks 2 --spectrum steep,flat
refuses 2 "--spectrum: ''" "$muster" verify "$small" --ranks 2 --spectrum steep,
refuses 2 'twice' "$muster" verify "$small" --ranks 2 --spectrum steep,equal,steep
refuses 2 '--coefficients' "$muster" verify "$small" --ranks 2 --coefficients magic
if ! has_gpu; then
  refuses 2 '--device' "$muster" verify "$small" --ranks 2 --device cuda
  refuses 2 '--device' "$muster" verify "$small" --ranks 2 --device cuda --comm nccl --graph off
fi
refuses 2 '--threads' "$muster" verify "$small" --ranks 2 --threads 0
refuses 2 '--html' "$muster" verify "$small" --ranks 2 --html "$work/no/such/page.html"
refuses 2 'no-such-model' "$muster" verify no-such-model --ranks 2
refuses 2 'l.0.qkv' "$muster" verify "$small" --ranks 2 --strategy grouped
sed 's/"bf16"/"f16"/' "$small" >"$work/half.model"
refuses 2 'l.0.down' "$muster" verify "$work/half.model" --ranks 2

finish
