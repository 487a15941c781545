#!/usr/bin/env bash
# Code blocks of pages are what their files have, and snippets fails on one that is not and fills it in.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/snippets"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs" "$work/examples"

cat >"$work/examples/train.cpp" <<'CODE'
#include <muster/optimizer.h>
int main() {
  // [step]
  for (int i = 0; i < 3; ++i) {
    // [inner]
    step(i);
    // [/inner]
  }
  // [/step]
}
CODE
printf '# [one]\nstep(1)\n# [/one]\n' >"$work/examples/train.py"
cat >"$work/docs/page.md" <<'PAGE'
# Training
<!-- snippet: examples/train.cpp#step -->
```cpp
old
```
Between.

- An item:
  <!-- snippet: examples/train.cpp#inner -->
  ```cpp
  ```
<!-- snippet: examples/train.py -->
```python
```
The end.
PAGE

# expect TEXT: it fails and says so.
expect() {
  if "$root/scripts/snippets" "$work" 2>"$work/said"; then
    echo "passed, expected: $1" >&2
    exit 1
  fi
  grep -qF "$1" "$work/said" || { cat "$work/said" && exit 1; }
}
expect "docs/page.md: a code block differs from its file; run scripts/snippets --write"
"$root/scripts/snippets" --write "$work" | grep -qx "snippets: 3 code blocks in 1 pages are as their files have them"
"$root/scripts/snippets" "$work"
diff - "$work/docs/page.md" <<'PAGE'
# Training
<!-- snippet: examples/train.cpp#step -->
```cpp
for (int i = 0; i < 3; ++i) {
  step(i);
}
```
Between.

- An item:
  <!-- snippet: examples/train.cpp#inner -->
  ```cpp
  step(i);
  ```
<!-- snippet: examples/train.py -->
```python
step(1)
```
The end.
PAGE

sed -i 's/step(i);/step(i + 1);/' "$work/examples/train.cpp"
expect "docs/page.md: a code block differs"
sed -i 's/\[\/inner\]/[inner]/' "$work/examples/train.cpp"
expect "docs/page.md:11: examples/train.cpp does not have one part [inner] ... [/inner]"
rm "$work/examples/train.py"
expect "docs/page.md:15: there is no file examples/train.py"
sed -i 's/^```python/python/' "$work/docs/page.md"
expect "docs/page.md:15: no code block follows the marker"
echo "all checks hold"
