#!/usr/bin/env bash
# What configuring decides about CUDA: architectures, NCCL, and a compiler that does not work.
# Usage: configure.sh CMAKE CXX_COMPILER
set -euo pipefail
cmake=$1 compiler=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset CUDAARCHS CUDACXX CUDA_HOME CUDA_PATH

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# program NAME TEXT...: a script of that name, found first.
mkdir "$work/bin"
program() {
  printf '%s\n' '#!/bin/sh' "${@:2}" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# says STATUS TEXT OPTIONS...: configures in a new directory; `fails` or `works`, and says TEXT.
says() {
  local expected=$1 text=$2 outcome=works
  shift 2
  PATH=$work/bin:$PATH "$cmake" -S "$root" -B "$work/build" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
    -DMUSTER_TESTS=OFF -DMUSTER_BENCHMARKS=OFF "$@" >"$work/log" 2>&1 || outcome=fails
  # CMake wraps long errors.
  if [[ $outcome != "$expected" ]] || ! tr -s ' \n' ' ' <"$work/log" | grep -qF -- "$text"; then
    fail "$*: $outcome, and should say '$text':"$'\n'"$(grep -A6 'muster:' "$work/log" || tail -n 5 "$work/log")"
  fi
}
fresh() {
  rm -rf "$work/build"
  says "$@"
}

echo "== without CUDA"
fresh works 'no CUDA (MUSTER_CUDA=OFF), no NCCL' -DMUSTER_CUDA=OFF
program nvcc 'echo broken >&2' 'exit 1'
# A wheel without CUDA although nvcc is there came as a surprise at run time.
fresh fails "$work/bin/nvcc does not work with $compiler" -DSKBUILD=2
fresh fails "$work/bin/nvcc does not work with $compiler" -DMUSTER_CUDA=ON
fresh works "$work/bin/nvcc does not work with $compiler"
CUDACXX=$work/bin/other fresh fails "$work/bin/other does not work with $compiler" -DSKBUILD=2
rm "$work/bin/nvcc"

if ! command -v nvcc >/dev/null; then
  echo "no nvcc: the rest is skipped"
  ((failures == 0)) && exit 77
  exit 1
fi

echo "== NCCL"
# pip builds with a Python that has no pip: nccl.h was not fetched then, and the wheel had no NCCL.
python3 -m venv --without-pip "$work/venv"
program nvidia-smi 'echo "No devices were found"' 'exit 6'
fresh works 'for 90a, NCCL,' -DPython3_EXECUTABLE="$work/venv/bin/python" -DSKBUILD=2
fresh works 'for 90a, no NCCL,' -DMUSTER_NCCL=OFF

echo "== architectures"
program nvidia-smi 'echo 9.0' 'echo 9.0'
fresh works 'for 90a, NCCL'
program nvidia-smi 'echo 8.6' 'echo 12.0'
says works 'for 86 120, NCCL'
says works 'for 80 89 90a 100, NCCL' -DMUSTER_CUDA_ARCHITECTURES=all
says works 'for 80 89 90a 100, NCCL'
says works 'for 80 90a, NCCL' '-DMUSTER_CUDA_ARCHITECTURES=80-real;90a-real'
says works 'for 89, NCCL' -DCMAKE_CUDA_ARCHITECTURES=89-real

if ((failures > 0)); then
  echo "$failures checks failed"
  exit 1
fi
echo "all of it holds"
