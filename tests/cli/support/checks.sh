# Sourced by the tests of commands that run models: sets $muster (the first argument), $root and $work, and counts
# failures. A test ends with `finish`.
muster=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# MPI and what it is made of may write to stderr what they like: a machine without /sys, say.
uses_mpi() { [[ $1 == on || " $* " == *" --comm mpi "* || " $* " == *" --comm nccl "* ]]; }

# gives NAME COMMAND...: exit 0 and nothing on stderr; keeps stdout as NAME for `holds`.
gives() {
  local name=$1 status=0
  shift
  "$@" >"$work/$name.json" 2>"$work/stderr" || status=$?
  if ((status != 0)); then fail "$*: exit $status: $(head -c 500 "$work/stderr")"; fi
  if uses_mpi "$@"; then
    if grep -q '^muster: ' "$work/stderr"; then fail "$*: wrote to stderr: $(head -c 500 "$work/stderr")"; fi
  elif [[ -s $work/stderr ]]; then
    fail "$*: wrote to stderr: $(head -c 500 "$work/stderr")"
  fi
}

# holds EXPRESSION: a Python expression over the JSON objects kept so far.
holds() {
  python3 - "$work" "$1" <<'PYTHON' || fail "$1"
import json, pathlib, sys

kept = {path.stem: json.loads(path.read_text()) for path in pathlib.Path(sys.argv[1]).glob("*.json")}
sys.exit(0 if eval(sys.argv[2], kept) else 1)
PYTHON
}

# refuses STATUS WORD COMMAND...: that exit status, nothing on stdout, and one line of Muster's on stderr that contains
# WORD; mpirun may add its own.
refuses() {
  local expected=$1 word=$2 status=0
  shift 2
  "$@" >"$work/stdout" 2>"$work/stderr" || status=$?
  local said
  said=$(grep '^muster: ' "$work/stderr" || true)
  if ((status != expected)); then
    fail "$*: exit $status, not $expected: $(head -c 500 "$work/stderr")"
  elif [[ -s $work/stdout ]]; then
    fail "$*: wrote to stdout"
  elif (($(grep -c '^muster: error: ' "$work/stderr") != 1)) || [[ $(wc -l <<<"$said") != 1 ]]; then
    fail "$*: not one line that begins with 'muster: error: ': $(head -c 500 "$work/stderr")"
  elif ! uses_mpi "$@" && [[ $(wc -l <"$work/stderr") != 1 ]]; then
    fail "$*: more than one line: $(head -c 500 "$work/stderr")"
  elif [[ $said != *"$word"* ]]; then
    fail "$*: does not name $word: $said"
  fi
}

# accepts FLAG...: complains about another flag, not about these; $complaint is what it said.
accepts() {
  complaint=$("$muster" tune "$@" --ranks x -o "$work/none" 2>&1 || true)
  [[ $complaint == *--ranks* ]]
}

# MPI is built in, mpirun is there, and nobody objects (MUSTER_TEST_MPI=off).
has_mpi() {
  [[ ${MUSTER_TEST_MPI:-on} == on ]] && command -v mpirun >/dev/null && accepts --comm mpi
}

# CUDA is built in, and there is a GPU.
has_gpu() { accepts --device cuda; }
# NCCL is built in and its library is there, too.
has_nccl() { accepts --device cuda --comm nccl; }

# Ends the test as skipped without a GPU.
needs_gpu() {
  if ! has_gpu; then
    echo "skipped: $complaint"
    exit 77
  fi
}

# on RANKS COMMAND...: under mpirun, even as root and with few cores. MPI leaks at exit.
on() {
  local ranks=$1
  shift
  ASAN_OPTIONS=detect_leaks=0 mpirun --oversubscribe --bind-to none --allow-run-as-root -n "$ranks" "$@"
}

# A model that takes no time: matrices of three shapes, uneven and empty shards, blocks, two dtypes, AdamW and Lion.
small=$work/small.model
cat >"$small" <<'JSON'
{
  "name": "small",
  "defaults": {"placements": {"fsdp": "shard(0)", "tp": "shard(1)", "replicate": "replicate"}},
  "parameters": [
    {"name": "embed", "shape": [61, 24], "algorithm": "adamw"},
    {"name": "l.{}.qkv", "layers": 3, "shape": [72, 24], "rows": [24, 24, 24]},
    {"name": "l.{}.up", "layers": 3, "shape": [70, 24], "algorithm": "muon"},
    {"name": "l.{}.down", "layers": 3, "shape": [24, 70], "dtype": "bf16"},
    {"name": "l.{}.gain", "layers": 3, "shape": [24], "algorithm": "lion", "placements": {"tp": "replicate"}},
    {"name": "gate", "shape": [1, 12], "norm_axis": "rows"}
  ]
}
JSON

# The same with experts: 5 and 3 of them divide over no two ranks, and some ranks get none.
experts=$work/experts.model
cat >"$experts" <<'JSON'
{
  "name": "experts",
  "defaults": {
    "order": ["ep", "fsdp"],
    "placements": {"fsdp": "shard(0)", "ep": "replicate", "tp": "shard(1)", "replicate": "replicate"}
  },
  "parameters": [
    {"name": "embed", "shape": [61, 24], "algorithm": "adamw"},
    {"name": "up", "shape": [5, 48, 20], "placements": {"ep": "shard(0)", "tp": "shard(2)"}},
    {"name": "down", "shape": [3, 20, 31], "dtype": "bf16", "placements": {"ep": "shard(0)", "tp": "shard(1)"}},
    {"name": "patch", "shape": [31, 3, 4, 4], "flatten": true, "algorithm": "muon"}
  ]
}
JSON

finish() {
  if ((failures > 0)); then
    echo "$failures checks failed" >&2
    exit 1
  fi
  echo "all checks hold"
}
