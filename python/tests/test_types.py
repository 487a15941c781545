"""What editors and type checkers see: hints, docstrings, and the stub of the compiled module."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import muster
import muster.torch
from muster import _muster

PACKAGE = Path(muster.__file__).parent


def _public() -> list:
    """Functions, classes and methods that muster.torch offers."""
    out = []
    for name in muster.torch.__all__:
        thing = getattr(muster.torch, name)
        if inspect.isclass(thing):
            out += [m for n, m in vars(thing).items() if inspect.isfunction(m) and not n.startswith("_")]
        if inspect.isclass(thing) or inspect.isfunction(thing):
            out.append(thing)
    return out


@pytest.mark.parametrize("thing", _public(), ids=lambda thing: thing.__qualname__)
def test_everything_public_is_documented_and_typed(thing) -> None:
    assert inspect.getdoc(thing)
    function = thing.__init__ if inspect.isfunction(getattr(thing, "__init__", None)) else thing
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    assert not [p.name for p in parameters if p.annotation is p.empty]
    assert inspect.isclass(thing) or inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_errors_say_what_they_mean() -> None:
    errors = {kind for kind in vars(muster).values() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert {muster.Error, muster.InvalidArgument, muster.ResourceError, muster.Internal} <= errors
    assert all(vars(kind)["__doc__"] for kind in errors | {muster.ErrorCode})


def test_a_strict_type_checker_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    check = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "-p", "muster"]
    found = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_stub_has_what_the_module_has() -> None:
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_muster.pyi").read_text())
    stubs = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert stubs == {name for name in dir(_muster) if not name.startswith("_")}


def test_options_have_types_and_defaults() -> None:
    typed = set(muster.torch.groups.GroupOptions.__annotations__)
    assert typed - {"mesh", "placements", "rank_local"} == set(muster.torch.groups.DEFAULTS)
