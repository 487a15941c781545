#!/usr/bin/env bash
# failures.sh PROGRAM RANKS: every rank but the one that kills itself says that all went as it should.
set -euo pipefail
"$1" --check
exec bash "$(dirname "$0")/../mpi/failures.sh" "$@"
