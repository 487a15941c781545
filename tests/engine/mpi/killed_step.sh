#!/usr/bin/env bash
# killed_step.sh PROGRAM RANKS: all but the killed rank pass.
exec bash "$(dirname "$0")/../../comm/mpi/failures.sh" "$@"
