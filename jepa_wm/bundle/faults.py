"""How the bundle reports faults: printable text, and one error for a whole file."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from jepa_wm.errors import BundleError

MAX_FAULTS = 20
"""Faults spelled out in one error; the rest are counted."""


def printable(text: object, limit: int = 120) -> str:
    """Return ``text`` with unprintable characters escaped, at most ``limit`` characters.

    Names and values come from files anybody may have written; raw escape sequences must not reach a
    terminal.
    """
    raw = str(text)
    if len(raw) <= limit and raw.isprintable():
        return raw
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in islice(raw, limit)
    )
    return shown if len(raw) <= limit else f"{shown}... ({len(raw)} characters)"


def bundle_error(path: Path | str, faults: Iterable[str]) -> BundleError:
    """Return the one-line error for a file: its path, then every fault (the first 20 and a count).

    Args:
        path: The file.
        faults: What is wrong with it, each naming key or tensor, what was found and what is right.
    """
    faults = list(faults)
    where = printable(path, 400)
    if len(faults) == 1:
        return BundleError(f"{where}: {faults[0]}")
    shown = "; ".join(faults[:MAX_FAULTS])
    more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
    return BundleError(f"{where}: {len(faults)} faults: {shown}{more}")
