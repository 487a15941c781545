#!/usr/bin/env bash
# Pages are as short as CONTRIBUTING.md says, and check_docs fails on one that is not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/check_docs"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs/howto" "$work/docs/lab"

# words COUNT: that many words in short paragraphs.
words() { for ((i = 0; i < $1; ++i)); do echo "word"; ((i % 20)) || echo; done; }
pass() { "$root/scripts/check_docs" "$work" >/dev/null; }
# expect TEXT...: it fails with these lines and no others.
expect() {
  if "$root/scripts/check_docs" "$work" 2>"$work/said"; then
    echo "passed, expected: $*" >&2
    exit 1
  fi
  diff <(printf '%s\n' "$@") "$work/said"
}

# At most four sentences in a paragraph, a list item and a cell. Code, versions and abbreviations end none.
page="$work/docs/page.md"
{
  echo "# One. Two. Three. Four. Five."
  echo "One is 1.5 (v0.2.0, e.g. this). Two?"
  echo "Three is [a link](a.b.c)! Four is the last."
  echo
  echo '- One. `A. B. C. D. E.` Two.'
  echo "- Three. Four. Five."
  echo
  echo "| One. Two. | Three. Four. Five. |"
  echo '```'
  echo "A. B. C. D. E. F."
  echo '```'
} >"$page"
pass
echo "One. Two. Three." >>"$page"
echo "Four. Five." >>"$page"
expect "docs/page.md:12: 5 sentences in a paragraph; at most 4"
for text in "- One. Two. Three. Four. Five." "| One | One. Two. Three. Four. Five. |" "> One. Two. Three. Four. Five."; do
  echo "$text" >"$page"
  expect "docs/page.md:1: 5 sentences in a paragraph; at most 4"
done

# At most 400 characters in a line of prose; the target of a link does not count.
long=$(printf 'x%.0s' {1..400})
printf '%s\n\n```\n%sx\n```\n[x](%s)\n' "$long" "$long" "$long" >"$page"
pass
echo "${long}x" >"$page"
expect "docs/page.md:1: 401 characters in a line; at most 400"
mv "$page" "$work/docs/lab/page.md"
pass

# At most 600 words in a how-to page; code does not count.
page="$work/docs/howto/page.md"
{ words 600; echo '```'; words 100; echo '```'; } >"$page"
pass
echo "more" >>"$page"
expect "docs/howto/page.md: 601 words; a how-to page has at most 600"
"$root/scripts/check_docs" --words "$work" | grep -qx "    601 words in 1 pages for users"
echo "all checks hold"
