#!/usr/bin/env bash
# Every public name of C++ has a comment, and check_headers fails on one that has none. Skipped without doxygen.
set -euo pipefail
command -v doxygen >/dev/null || { echo "skipped: there is no doxygen; scripts/setup docs installs it"; exit 77; }
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r "$root/include" "$work"
"$root/scripts/check_headers" "$work"
header="$work/include/muster/cost.h"
# expect TEXT CODE: it fails with this code at the end of a header, and says so.
expect() {
  cp "$root/include/muster/cost.h" "$header"
  echo "$2" >>"$header"
  if "$root/scripts/check_headers" "$work" >"$work/said" 2>&1; then
    echo "passed, expected: $1" >&2
    exit 1
  fi
  grep -qF "$1" "$work/said" || { cat "$work/said" && exit 1; }
}
expect "Member price()" 'namespace muster { int price(); }'
expect "Compound muster::Price" 'namespace muster { struct Price { /** In euros. */ int price; }; }'
expect "Member price" 'namespace muster { /** A price. */ struct Price { int price; }; }'
expect "kHigh has no comment" 'namespace muster { /** A price. */ enum class Price { kHigh }; }'
expect "Member Price" 'namespace muster { enum class Price { /** High. */ kHigh }; }'
# A comment with // is none for Doxygen.
expect "Member price()" $'namespace muster {\n// What it costs.\nint price();\n}'
echo "all checks hold"
