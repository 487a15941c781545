#!/usr/bin/env bash
# The includes of the tree obey CONTRIBUTING.md, and check_includes fails on a tree that does not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/check_includes"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/base" "$work/src/layout" "$work/src/plan/waves/detail" "$work/src/plan/cost" "$work/tools/sim"
cat >"$work/CONTRIBUTING.md" <<'TABLE'
| folder | holds | may include |
|---|---|---|
| `src/base/` | text | - |
| `src/layout/` | meshes | - |
| `src/plan/` | plans | layout |
| `src/plan/cost/` | costs | layout, plan/waves |
| `src/plan/waves/` | waves | - |
| `tools/sim/` | a simulation | plan, plan/cost |
TABLE
printf '#include "base/text.h"\n#include "muster/layout.h"\n' >"$work/src/layout/layout.cpp"
printf '#include "layout/run.h"\n#include "plan/cost/cost.h"\n#include "plan/waves/wave.h"\n' >"$work/src/plan/plan.cpp"
printf '#include "plan/cost/table.h"\n#include "plan/waves/wave.h"\n' >"$work/src/plan/cost/cost.cpp"
echo '#include "plan/waves/wave.h"' >"$work/src/plan/waves/detail/wave.cpp"
printf '#include "plan/plan.h"\n#include "plan/cost/cost.h"\n#include "sim/sim.h"\n' >"$work/tools/sim/sim.cpp"
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

# A subfolder with a row: nobody else includes it unnamed, and it includes neither its siblings nor its parent unnamed.
echo '#include "plan/waves/wave.h"' >"$work/tools/sim/sim.cpp"
expect "tools/sim/sim.cpp:1: includes plan/waves/, which tools/sim may not"
rm "$work/tools/sim/sim.cpp"
echo '#include "plan/cost/cost.h"' >"$work/src/plan/waves/detail/wave.cpp"
expect "src/plan/waves/detail/wave.cpp:1: includes plan/cost/, which src/plan/waves may not"
echo '#include "layout/run.h"' >"$work/src/plan/waves/detail/wave.cpp"
expect "src/plan/waves/detail/wave.cpp:1: includes layout/, which src/plan/waves may not"
rm "$work/src/plan/waves/detail/wave.cpp"
echo '#include "plan/plan.h"' >"$work/src/plan/cost/cost.cpp"
expect "src/plan/cost/cost.cpp:1: includes plan/, which src/plan/cost may not"
rm "$work/src/plan/cost/cost.cpp"

mkdir "$work/src/engine"
expect "src/engine: it has no row in CONTRIBUTING.md"
rm -r "$work/src/engine"
sed -i 's/| layout, plan.waves |/| layout, plan\/wave |/' "$work/CONTRIBUTING.md"
expect "CONTRIBUTING.md: src/plan/cost may include plan/wave, which has no row"
rm -r "$work/src/plan"
expect "CONTRIBUTING.md: src/plan: there is no such folder"
echo "all checks hold"
