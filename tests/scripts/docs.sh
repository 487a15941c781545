#!/usr/bin/env bash
# The documentation site has what it should, and building it fails where a page or a docstring is wrong. Skipped before
# `make docs`, which installs Sphinx and which `make test` runs before the tests.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
site=$root/build/docs
[ -e "$site/searchindex.js" ] || { echo "skipped: there is no site; make docs builds it"; exit 77; }

# has FILE TEXT...
has() {
  for text in "${@:2}"; do
    grep -qF -- "$text" "$site/$1" || { echo "$1 does not have: $text" >&2; exit 1; }
  done
}
has index.html 'url=docs/index.html'
has docs/api/python.html 'id="muster.torch.NorMuon.load_state_dict"' 'id="muster.torch.param_groups"' 'momentum_dtype'
has docs/api/cpp.html 'Makes one step.' 'id="_CPPv4N6muster9Optimizer' 'The most dimensions that a tensor may have.'
has docs/index.html 'reference/errors.html' '../CONTRIBUTING.html' 'lab/planning-2026-11.html'
has searchindex.js '"docs/reference/errors"' 'muster.torch'

# A small tree with the same configuration.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs/api" "$work/docs/lab" "$work/examples/one" "$work/benchmarks/results" "$work/data" "$work/python/muster" "$work/tools"
cp "$root/docs/conf.py" "$work/docs"
cp -r "$root/include" "$work"
cp "$root/docs/api/cpp.rst" "$work/docs/api"
printf 'Python API\n==========\n\n.. autoapifunction:: muster.info\n' >"$work/docs/api/python.rst"
printf '"""A package."""\n__version__ = "1.2.3"\n__all__ = ["info"]\ndef info():\n    """Says ``hello``."""\n' \
  >"$work/python/muster/__init__.py"
mkdir -p "$work/docs/reference"
for page in README.md data/README.md examples/one/README.md benchmarks/results/today.md docs/lab/old.md docs/reference/{python,cpp,errors}.md; do
  echo "# $page" >"$work/$page"
done
cat >"$work/docs/index.md" <<'PAGE'
# Pages
## Reference
- [Python](reference/python.md), [C++](reference/cpp.md), [errors](reference/errors.md#what-it-means)
- [old](lab/old.md), [a folder](../tools), [a folder with a README](../examples/one), [a source](../python/muster/__init__.py)
PAGE
printf '\n## What it means\n' >>"$work/docs/reference/errors.md"
build() { "$root/scripts/docs" "$work" >"$work/said" 2>&1; }
build || { cat "$work/said" && exit 1; }
grep -q 'href="../examples/one/README.html"' "$work/build/docs/docs/index.html"
grep -q 'a folder, ' "$work/build/docs/docs/index.html"
grep -q '_downloads/[0-9a-f]*/__init__.py' "$work/build/docs/docs/index.html"

echo '[a page](none.md), [a heading](reference/errors.md#none), [a folder](../none)' >>"$work/docs/index.md"
echo '# Not listed' >"$work/docs/reference/lost.md"
sed -i 's/``hello``/``hello/' "$work/python/muster/__init__.py"
if build; then
  echo "built in spite of bad links" >&2
  exit 1
fi
for text in "'none.md'" "errors.md#none\|'none'" "'../none'" "docs/reference/lost.md.*toctree" "Inline literal"; do
  grep -q -- "$text" "$work/said" || { echo "not said: $text" && cat "$work/said" && exit 1; }
done
echo "all checks hold"
