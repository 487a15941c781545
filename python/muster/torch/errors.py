"""Errors that this package raises with a code, as the engine does."""

from __future__ import annotations

from .. import _muster


def comm_error(text: str, code: _muster.ErrorCode) -> _muster.CommError:
    """A CommError with a code, which it keeps on its way through the engine."""
    error = _muster.CommError(text)
    error.code = code
    return error
