#!/usr/bin/env bash
# Every public name of the Python package has a docstring, and check_docstrings fails on one that has none.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/scripts/check_docstrings"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package="$work/python/muster"
mkdir -p "$package/torch" "$package/integrations" "$work/docs/api"

cat >"$package/__init__.py" <<'CODE'
"""A package."""
from ._muster import Error
from .build_info import info
__all__ = ["Error", "info"]
CODE
cat >"$package/build_info.py" <<'CODE'
def info(): """What is there."""
CODE
cat >"$package/torch/__init__.py" <<'CODE'
"""Optimizers."""
from . import groups
from .optimizer import Muon
__all__ = ["Muon", "groups"]
CODE
cat >"$package/torch/groups.py" <<'CODE'
"""Groups."""
__all__ = ["DEFAULTS"]
DEFAULTS = {}
"""By key."""
def helper(): pass
CODE
cat >"$package/torch/base.py" <<'CODE'
class Base:
    lr: float
    """The rate."""
    def save(self, path):
        """Writes to path."""
    def _private(self): pass
CODE
cat >"$package/torch/optimizer.py" <<'CODE'
from .base import Base
class Muon(Base):
    """Steps with lr.

    Args:
        lr: the rate.
        more: keys of a group.
    """
    def __init__(self, lr, **more): pass
    @property
    def names(self):
        """The names."""
CODE
printf '.. autoapi:: %s\n' muster.Error muster.info muster.torch.Muon muster.torch.groups.DEFAULTS >"$work/docs/api/python.rst"

# expect FILE SED TEXT: with this change of a file it fails, and says so.
expect() {
  cp "$work/$1" "$work/kept"
  sed -i "$2" "$work/$1"
  if "$root/scripts/check_docstrings" "$work" 2>"$work/said"; then
    echo "passed, expected: $3" >&2
    exit 1
  fi
  diff <(echo "$3") "$work/said"
  mv "$work/kept" "$work/$1"
}
"$root/scripts/check_docstrings" "$work" | grep -qx "check_docstrings: all 11 public names have one"
expect python/muster/torch/__init__.py '1d' "python/muster/torch/__init__.py:1: muster.torch has no docstring"
expect python/muster/build_info.py 's/"""What is there."""/pass/' "python/muster/build_info.py:1: muster.info has no docstring"
expect python/muster/torch/groups.py '/By key/d' "python/muster/torch/groups.py:3: muster.torch.groups.DEFAULTS has no docstring"
expect python/muster/torch/optimizer.py '/The names/s/""".*/pass/' "python/muster/torch/optimizer.py:11: muster.torch.Muon.names has no docstring"
expect python/muster/torch/base.py '/The rate/d' "python/muster/torch/base.py:2: muster.torch.Muon.lr has no docstring"
expect python/muster/torch/base.py '/Writes/s/""".*/pass/' "python/muster/torch/base.py:4: muster.torch.Muon.save has no docstring"
expect python/muster/torch/base.py 's/Writes to path/Writes/' \
  "python/muster/torch/base.py:4: muster.torch.Muon.save: its docstring does not name the parameter path"
expect python/muster/torch/optimizer.py '/more:/d' \
  "python/muster/torch/optimizer.py:8: muster.torch.Muon.__init__: its docstring does not name the parameter more"
expect docs/api/python.rst '/Muon/d' "docs/api/python.rst: muster.torch.Muon is missing"
echo "all checks hold"
