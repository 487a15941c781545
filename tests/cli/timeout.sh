#!/usr/bin/env bash
# Ranks that stop: --timeout ends the others, which had waited for an hour, in MPI_Init for ever. Usage: timeout.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 8 --slots 4 --threads 1 --json)

echo "== bad values"
refuses 2 '--timeout: 0' "$muster" train "${tiny[@]}" --timeout 0
refuses 2 "--timeout: 'soon'" "$muster" bench "$small" --timeout soon
refuses 2 '--timeout: -1' "$muster" verify "$small" --timeout=-1
refuses 2 '--timeout: 3' "$muster" tune --timeout 3000000 -o "$work/cost.json"
gives one "$muster" train "${tiny[@]}" --steps 2 --ranks 2 --timeout 60

if ! has_mpi; then
  echo "skipped the rest: no MPI"
  finish
  exit
fi

# Stops the process of rank $STOPS, after $DELAY seconds or before it begins.
cat >"$work/stopping" <<'SH'
#!/usr/bin/env bash
if [[ ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}} == "$STOPS" ]]; then
  process=$$
  if [[ $DELAY == 0 ]]; then kill -STOP "$process"; else (sleep "$DELAY" && kill -STOP "$process") & fi
fi
exec "$@"
SH
chmod +x "$work/stopping"

for stops in 0 1; do
  export STOPS=$stops
  echo "== rank $stops stops before MPI_Init"
  DELAY=0 refuses 1 'MPI_Init: not all ranks called it within 2 s (--timeout 2)' \
    on 2 "$work/stopping" "$muster" train "${tiny[@]}" --timeout 2
  echo "== rank $stops stops while it trains"
  status=0
  DELAY=6 on 2 "$work/stopping" "$muster" train "${tiny[@]}" --steps 10000000 --timeout 4 2>"$work/stderr" || status=$?
  # mpirun continues the stopped rank before it ends it, and that rank may report its own error, too.
  said=$(grep -m 1 '^muster: error: ' "$work/stderr" || true)
  ((status == 1)) || fail "exit $status, not 1: $(head -c 500 "$work/stderr")"
  [[ $said == *"rank $stops did not arrive within 4000 ms (--timeout 4)" ]] || fail "does not name rank and flag: $said"
done

finish
