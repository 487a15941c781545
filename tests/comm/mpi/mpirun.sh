# Sourced: launch RANKS PROGRAM [OPTION...] runs it under mpirun, even as root and with few cores.
launch() {
  local ranks=$1 program=$2
  shift 2
  if ! command -v mpirun >/dev/null; then
    echo "skipped: mpirun is not installed (Debian: openmpi-bin)"
    exit 77
  fi
  # With --enable-recovery it would wait forever for ranks that did not start.
  # Ranks of two would each have one core, for all their threads.
  timeout 240 mpirun --oversubscribe --bind-to none --allow-run-as-root "$@" -n "$ranks" "$program"
}
