#!/usr/bin/env bash
# The contract of `muster info`. Usage: info.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

echo "== what it prints"
gives info "$muster" info --json
holds 'set(info) == {"version", "cuda", "nccl", "mpi", "cpu"}'
holds 'info["cpu"]["elementwise"] in ("avx512", "avx2", "portable") and info["cpu"]["blis"]'
holds 'not info["cuda"]["built_in"] or (info["cuda"]["architectures"] and info["cuda"]["runtime"])'
# A library that is missing is said, not an error.
holds 'not info["nccl"]["built_in"] or bool(info["nccl"]["version"]) != bool(info["nccl"]["missing"])'
holds 'info["mpi"]["built_in"] == bool(info["mpi"]["version"])'
table=$("$muster" info)
[[ $(cut -d' ' -f1 <<<"$table" | xargs) == "muster CUDA NCCL MPI CPU" ]] || fail "the table has other rows: $table"
grep -q "^muster  $("$muster" --version | cut -d' ' -f2)\$" <<<"$table" || fail "the table has another version"

echo "== bad input"
refuses 2 'surplus' "$muster" info surplus

finish
