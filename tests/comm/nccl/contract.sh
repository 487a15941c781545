#!/usr/bin/env bash
# contract.sh PROGRAM RANKS: the contract over NCCL.
set -euo pipefail
"$1" --check
. "$(dirname "$0")/../mpi/mpirun.sh"
launch "$2" "$1"
