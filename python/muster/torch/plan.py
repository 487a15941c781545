"""Plans as Python sees them."""

from __future__ import annotations

from typing import Any


class Plan(dict[str, Any]):
    """A plan: the object that ``muster plan --json`` prints; as text, its table."""

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self.pop("plan_ms", None)  # which nobody took
        self._text = text

    def __str__(self) -> str:
        return self._text
