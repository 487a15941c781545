#!/usr/bin/env bash
# Every file that states the version states the same one.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(sed -nE 's/^project\(muster VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "CMakeLists.txt: no version" >&2 && exit 1; }

# expect FILE LINE: the file has that line, or a line that begins so.
expect() { grep -q "^${2//./\\.}" "$1" || { echo "$1: no line \"$2\"" >&2 && exit 1; }; }
expect pyproject.toml "version = \"$version\""
expect python/muster/__init__.py "__version__ = \"$version\""
expect CITATION.cff "version: $version"
expect CHANGELOG.md "## $version ("
first=$(grep -m 1 '^## ' CHANGELOG.md)
[[ $first == "## $version ("* ]] || { echo "CHANGELOG.md: \"$first\" comes before $version" >&2 && exit 1; }
echo "version $version in five files"
