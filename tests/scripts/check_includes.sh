#!/usr/bin/env bash
# The includes of the tree obey CONTRIBUTING.md, and check_includes fails on a tree that does not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/check_includes"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/layout" "$work/src/plan" "$work/tools"
cat >"$work/CONTRIBUTING.md" <<'TABLE'
| folder | holds | may include |
|---|---|---|
| `src/layout/` | meshes | - |
| `src/plan/` | plans | layout |
TABLE
echo '#include "layout/run.h"' >"$work/src/plan/plan.cpp"
echo '#include "muster/layout.h"' >"$work/src/layout/layout.cpp"
"$root/scripts/check_includes" "$work"

# expect TEXT: it fails, and says so.
expect() {
  if "$root/scripts/check_includes" "$work" 2>"$work/said"; then
    echo "passed, expected: $1" >&2
    exit 1
  fi
  grep -qF "$1" "$work/said" || { cat "$work/said" && exit 1; }
}
printf '\n#include "plan/plan.h"\n' >"$work/src/layout/layout.cpp"
expect "src/layout/layout.cpp:2: includes plan/, which src/layout may not"
rm "$work/src/layout/layout.cpp"
mkdir "$work/src/engine"
expect "src/engine: it has no row in CONTRIBUTING.md"
rm -r "$work/src/engine" "$work/src/plan"
expect "CONTRIBUTING.md: src/plan: there is no such folder"
echo "all checks hold"
