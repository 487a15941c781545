"""Errors that this package raises, in the form of the engine's: one line, with the name and a short value."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from .. import _muster

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def shown(value: Any) -> str:
    """A value for a message: one line of at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"an integer of {value.bit_length()} bits"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """Raises ValueError unless the value is a whole number from ``low`` to ``high``: the engine takes no other."""
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} {shown(value)}: expected a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{name} {shown(number)}: expected a whole number from {low} to {high}")
    return number


def whole_numbers(name: str, values: Iterable[Any], low: int, high: int) -> list[int]:
    """The same for each of the values."""
    return [whole_number(name, value, low, high) for value in values]


def comm_error(text: str, code: _muster.ErrorCode) -> _muster.CommError:
    """A CommError with a code, which it keeps on its way through the engine."""
    error = _muster.CommError(text)
    error.code = code
    return error
