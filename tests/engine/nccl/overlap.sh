#!/usr/bin/env bash
# overlap.sh PROGRAM RANKS: steps that begin early, over NCCL.
set -euo pipefail
"$1" --check
. "$(dirname "$0")/../../comm/mpi/mpirun.sh"
launch "$2" "$1"
