"""What is wrong with a question: each exception has the code, the place and the remedy that the program prints."""

from __future__ import annotations

import json
from typing import Any


class NapkinError(Exception):
    """A question that cannot be answered as it was put. ``problems`` has all that is wrong with it, not the first alone.

    Attributes:
        problems: one dict for each problem, with ``code``, ``message``, ``location``, ``why`` and ``help``.
        code: code of the first problem with a place, else of the first; such as ``T0479``, or ``None`` where it has none.
        path: file of that problem, if it is in one.
        line: line in that file, from 1.
        hint: what to do about it, if that is known.
    """

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        self.problems = problems
        # What has a place beyond the beginning of its file says more than what is missing from it.
        placed = [one for one in problems if ((one.get("location") or {}).get("line") or 0) > 1]
        first = (placed or problems or [{}])[0]
        location = first.get("location") or {}
        self.code: str | None = first.get("code")
        self.path: str | None = location.get("file")
        self.line: int | None = location.get("line")
        self.hint: str | None = "; ".join(first.get("help") or []) or None
        super().__init__("\n".join(_told(problem) for problem in problems))


class ConfigError(NapkinError, ValueError):
    """A model's configuration, or another input, that is wrong."""


class NapkinWarning(UserWarning):
    """Something that may put an answer off, such as a key of a configuration that is not understood."""


def _told(problem: dict[str, Any]) -> str:
    location = problem.get("location") or {}
    where = ":".join(str(location[key]) for key in ("file", "line", "column") if location.get(key) is not None)
    text = f"{where}: {problem['message']}" if where else str(problem["message"])
    if problem.get("why"):
        text += f" ({problem['why']})"
    return text + "".join(f"\n  help: {one}" for one in problem.get("help") or [])


def from_json(document: str) -> ConfigError:
    """The exception for a JSON document of problems."""
    return ConfigError(json.loads(document)["errors"])


def warning_text(problem: dict[str, Any]) -> str:
    """A warning of a report in one line."""
    effect = problem.get("effect")
    return problem["message"] + (f": {effect}" if effect else "")
