#!/usr/bin/env bash
# api.sh COMPILER CUDA_INCLUDE FOLDER: compares our declarations of NCCL with NVIDIA's nccl.h: that of its package on
# PyPI, fetched into FOLDER. Skipped where it cannot be fetched.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)

if [[ ! -e $3/include/nccl.h ]] && ! python3 "$root/scripts/cuda_packages" "$3" 'nvidia-nccl-cu13==2.28.9'; then
  echo "skipped: nccl.h cannot be fetched"
  exit 77
fi
"$1" -std=c++20 -fsyntax-only -I "$root/src" -isystem "$3/include" -isystem "$2" "$root/tests/comm/nccl/api.cpp"
echo "as in NVIDIA's nccl.h"
