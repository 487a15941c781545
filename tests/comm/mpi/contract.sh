#!/usr/bin/env bash
# contract.sh PROGRAM RANKS: the contract over MPI.
set -euo pipefail
. "$(dirname "$0")/mpirun.sh"
launch "$2" "$1"
