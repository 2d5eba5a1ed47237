"""Answers: numbers for programs, text for terminals, drawings for notebooks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from . import _native
from .errors import NapkinWarning, from_json, warning_text
from .words import flags


class Answer:
    """What the program says to a question; it does not change.

    ``answer["peak_bytes"]`` is a number of ``result`` by its name there, and names carry units.
    """

    __slots__ = ("__dict__", "_native")

    def __init__(self, native: _native.Answer) -> None:
        self._native = native

    @cached_property
    def _document(self) -> dict[str, Any]:
        return json.loads(self._native.json())  # type: ignore[no-any-return]

    @property
    def answered(self) -> bool:
        """False where the answer is "no": it does not fit, or cannot be done."""
        return self._native.answered

    @property
    def command(self) -> str:
        """The command line that asks the same."""
        return self._native.command

    @property
    def headline(self) -> str:
        """The answer in a line."""
        return self._native.text(200, quiet=True).strip()

    @property
    def result(self) -> dict[str, Any]:
        """All numbers, exact, by names that carry their unit."""
        return self._document["result"]  # type: ignore[no-any-return]

    @property
    def assumptions(self) -> list[dict[str, Any]]:
        """What the answer rests on, each with its value and the option that changes it."""
        return self._document["assumptions"]  # type: ignore[no-any-return]

    @property
    def charts(self) -> list[str]:
        """Names of what is drawn of it, for :meth:`svg`."""
        return self._native.charts

    def __getitem__(self, name: str) -> Any:
        return self.result[name]

    def explain(self, name: str | None = None) -> str:
        """How numbers come about: formula, values, source. ``name`` picks those whose name begins so, such as
        ``activations.mlp``."""
        found = [one for one in self._document["derivations"] if name is None or one["of"].startswith(name)]
        if not found:
            known = ", ".join(dict.fromkeys(one["of"] for one in self._document["derivations"]))
            raise KeyError(f"nothing named {name!r} is derived here; there are: {known}")
        return "\n\n".join(
            f"{one['of']} = {one['value']} {one['unit'] or ''}".rstrip()
            + f"\n  {one['expression']}\n  {one['substituted']}\n  {one['source']}"
            for one in found
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole answer, as ``napkin --json`` prints it."""
        return json.loads(self._native.json())  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """The same as text."""
        return self._native.json()

    def to_csv(self) -> str:
        """One quantity a line, as ``napkin -o FILE.csv`` writes it."""
        return self._native.csv()

    def to_markdown(self) -> str:
        """As ``napkin -o FILE.md`` writes it."""
        return self._native.markdown()

    def to_html(self) -> str:
        """A page that needs nothing else, as ``napkin -o FILE.html`` writes it."""
        return self._native.page()

    def svg(self, chart: str | None = None, *, width: float = 960) -> str:
        """A chart as an SVG file: the most telling one, or one of :attr:`charts`."""
        drawn = self._native.svg(chart, width)
        if drawn is None:
            what = "nothing of this answer is drawn" if not self.charts else f"there is no chart {chart!r} in this answer"
            raise KeyError(what + (f"; there are: {', '.join(self.charts)}" if self.charts else ""))
        return drawn

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the answer; the extension is the format: .svg .html .json .csv .md .txt. An existing file is kept unless
        ``overwrite``."""
        path = Path(path)
        forms = {
            ".svg": self.svg,
            ".html": self.to_html,
            ".json": self.to_json,
            ".csv": self.to_csv,
            ".md": self.to_markdown,
            ".txt": lambda: self._native.text(100),
        }
        if path.suffix not in forms:
            raise ValueError(f"{path} has no extension that is a format: {' '.join(forms)}")
        if path.suffix == ".svg" and not self.charts:
            raise ValueError(f"nothing of this answer is drawn, so it is not written to {path}")
        # Made before the file is: an error leaves no empty one.
        text = forms[path.suffix]()
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
        return path

    def __repr__(self) -> str:
        return self._native.text(80).rstrip()

    def __str__(self) -> str:
        return self._native.text(100).rstrip()

    def _repr_html_(self) -> str:
        # The style names nothing but the charts, which take the colour of the text around them.
        return f"<div><style>{_native.style()}</style>{self._native.fragment()}</div>"


class Rows(Sequence[dict[str, Any]]):
    """Rows of a table: a sequence of dicts, which ``pandas.DataFrame(rows)`` takes as it is."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def to_pandas(self) -> Any:
        """A DataFrame, where pandas is installed."""
        import pandas

        return pandas.DataFrame(self._rows)

    def __repr__(self) -> str:
        if not self._rows:
            return "no rows"
        names = list(self._rows[0])
        texts = [names, *[[_cell(row.get(name)) for name in names] for row in self._rows]]
        widths = [max(len(line[at]) for line in texts) for at in range(len(names))]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip()[:80] for line in texts)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def asked(words: list[str], files: dict[str, bytes] | None = None, options: dict[str, Any] | None = None) -> Answer:
    """The answer to a command line.

    Raises:
        ConfigError: with all that is wrong.
    """
    try:
        answer = Answer(_native.answer([*words, *flags(options or {})], files or {}))
    except _native.Problems as problems:
        raise from_json(str(problems)) from None
    for warning in answer._document["warnings"]:
        warnings.warn(warning_text(warning), NapkinWarning, stacklevel=3)
    return answer
