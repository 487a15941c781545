#!/usr/bin/env bash
# failures.sh PROGRAM RANKS: every rank but the one that kills itself says that all went as it should. mpirun's own
# status says nothing when it is told to let the others live.
set -euo pipefail
. "$(dirname "$0")/mpirun.sh"
output=$(launch "$2" "$1" --enable-recovery 2>&1) || status=$?
echo "$output"
[ "${status:-0}" != 77 ] || exit 77
passed=$(grep -c '^rank [0-9]*: passed$' <<<"$output" || true)
echo "$passed of $(($2 - 1)) ranks passed"
[ "$passed" -eq $(($2 - 1)) ]
