"""A table of text, for a screen: as narrow as asked, long names in several lines."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

SCREEN = 120  # columns
NARROWEST = 8  # characters of a column
HEAD = 14  # characters that a head may take of its own accord
GAP = "  "


@dataclass(frozen=True)
class Table:
    """Rows of text under a head.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: As many cells each.
        note: What to know when reading it, or "".
        is_long: Shown on demand only, where that can be done.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    is_long: bool = False

    def text(self, width: int = SCREEN) -> str:
        """Return it in columns, no line longer than ``width`` unless there are too many columns."""
        parts = [self.title]
        if self.rows:
            head = [printable(name) for name in self.head]
            rows = [[printable(cell) for cell in row] for row in self.rows]
            widths = _widths(head, rows, width)
            parts += _lines(head, widths)
            parts += ["-" * min(width, sum(widths) + len(GAP) * (len(widths) - 1))]
            parts += [line for row in rows for line in _lines(row, widths)]
        parts += textwrap.wrap(printable(self.note), width)
        return "\n".join(parts)


def printable(text: str) -> str:
    """Return a text without what would move the cursor or colour the screen."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return how wide each column is: as its cells, the widest ones less if it is too much."""
    widths = [
        max(*(len(row[i]) for row in rows), *map(len, name.split(" ")), min(len(name), HEAD))
        for i, name in enumerate(head)
    ]
    room = width - len(GAP) * (len(head) - 1)
    while sum(widths) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _lines(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return a row, in as many lines as its longest cell needs."""
    wrapped = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    columns = [lines + [""] * (height - len(lines)) for lines in wrapped]
    return [
        GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
