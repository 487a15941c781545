#!/usr/bin/env bash
# Texts for users keep to the words of CONTRIBUTING.md, and banned_phrases finds each that does not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/banned_phrases"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs/lab" "$work/include/muster" "$work/src/plan" "$work/python/muster"

pass() { "$root/scripts/banned_phrases" "$work" >/dev/null || { echo "failed on: $(cat "$1")" >&2 && exit 1; }; }
# expect PLACE PHRASE: it fails on this alone.
expect() {
  if "$root/scripts/banned_phrases" "$work" 2>"$work/said"; then
    echo "passed, expected: $*" >&2
    exit 1
  fi
  [ "$(wc -l <"$work/said")" = 1 ] && grep -qF "$1: \"$2\"; rather:" "$work/said" || { cat "$work/said" && exit 1; }
}

page="$work/docs/page.md"
while IFS='|' read -r phrase text; do
  echo "$text" >"$page"
  expect docs/page.md:1 "$phrase"
done <<'TEXTS'
whoever|set to false for whoever looks for an error
Nobody|Nobody reads this.
Who needs|It reserves space. Who needs more grows it.
but who waits|It tells none but who waits for it.
what no|It is what no device has run.
what was there before|It restores what was there before.
anew|It records the step anew.
upon|It acts upon a failure.
Beside|Beside other systems it is short.
in between|The weights are in between.
bytes a parameter|It needs 24 bytes a parameter.
word a parameter|There is one word a parameter, and 0 means that it sits out.
launches a step|It needs three launches a step.
once a step|It runs once a step.
ms a step|This takes 3 ms a step (on two ranks).
tokens a second|It trains on 100 tokens a second.
all the same|It is made all the same.
bulk tensor|The bulk tensor copy engine loads it.
multiply_add|The multiply_add loop follows.
TEXTS

# Fine: a verb with an object, a relative clause, code blocks, a phrase of a longer word.
cat >"$page" <<'PAGE'
This enqueues a step, and the bytes a rank sends are few. Besides, the exchanges between a node and a rank are short.
All the same ranks take part. Users who need more read on.

```
whoever anew upon
```
PAGE
pass "$page"
echo "Nobody reads this." >"$work/docs/lab/page.md"
pass "$page"

# A phrase may cross lines.
printf 'It needs 24 bytes\na parameter.\n' >"$page"
expect docs/page.md:1 "bytes a parameter"
rm "$page"

# Comments of public headers, docstrings, and literals.
file="$work/include/muster/plan.h"
printf 'int x;  // of x\n// It is enqueued\n// anew.\nint anew;\n' >"$file"
expect include/muster/plan.h:3 "anew"
printf '// Of a device whose calls return early.\n' >"$file"
expect include/muster/plan.h:1 "Of a"
printf 'int owner;  ///< Of a matrix.\n' >"$file"
expect include/muster/plan.h:1 "Of a"
rm "$file"
file="$work/src/plan/plan.cpp"
printf '// anew\nthrow InvalidArgument("needs 24 bytes "\n                      "a parameter");\n' >"$file"
expect src/plan/plan.cpp:2 "bytes a parameter"
printf 'help = R"(\nIt is planned anew.)";\n' >"$file"
expect src/plan/plan.cpp:2 "anew"
rm "$file"
file="$work/python/muster/plan.py"
printf 'def anew():  # anew\n    """First line.\n\n    It is planned anew.\n    """\n' >"$file"
expect python/muster/plan.py:4 "anew"
printf 'raise ValueError(f"{x} is planned anew")\n' >"$file"
expect python/muster/plan.py:1 "anew"
rm "$file"
echo "all checks hold"
