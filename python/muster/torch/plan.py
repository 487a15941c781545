"""A plan as a Python dict."""

from __future__ import annotations

from typing import Any


class Plan(dict[str, Any]):
    """A plan as a dict, with the values that ``muster plan --json`` prints. ``str`` gives its table.

    ``NorMuon.plan`` makes it.

    Args:
        values: the values by name.
        text: the table.
    """

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self.pop("plan_ms", None)  # not measured here
        self._text = text

    def __str__(self) -> str:
        return self._text
