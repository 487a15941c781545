#!/usr/bin/env bash
# killed_step.sh PROGRAM RANKS: all but the killed rank pass, in whatever way it is killed.
set -euo pipefail
"$1" --check
for way in before_step before_recorded_step within_step within_recorded_step; do
  echo "== $way"
  MUSTER_TEST_WAY=$way bash "$(dirname "$0")/../../comm/mpi/failures.sh" "$@"
done
