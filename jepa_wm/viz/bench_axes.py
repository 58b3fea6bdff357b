"""What the figures of a benchmark share: how names are told apart, wrapped and listed."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jepa_wm.viz.style import BLUE, GREEN, GREY, INK, ORANGE, new_figure

CYCLE = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", INK)
"""Okabe and Ito's colours; with more names, lines and markers tell them apart."""
LINES, MARKERS = ("-", "--", ":", "-."), "osD^v"
WRAP = 34  # characters of a name on one line
LINE = 0.14  # inches, of text of 8 points
MARGIN = 1.7  # of a log axis, so that it shows at least one number
SIDE = 5.0  # points between two markers at one place
Look = tuple[str, str, str]
"""Colour, line style, marker."""


def wrapped(name: str, width: int = WRAP) -> str:
    """Break a name into lines, between words or where it must be; nothing in it is markup."""
    lines = [""]
    for word in "".join(sign if sign.isprintable() else " " for sign in name).split():
        rest = word
        while len(rest) > width:
            lines[-1:] = [lines[-1], rest[:width]] if lines[-1] else [rest[:width]]
            rest = rest[width:]
        joined = f"{lines[-1]} {rest}".strip()
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], rest]
    return "\n".join(lines).replace("$", r"\$")


def side_by_side(values: Mapping[str, float]) -> dict[str, float]:
    """Return by how many points to move each name to the right, so that none hides another.

    Args:
        values: By name, > 0, for a log axis; those within 3 % of a neighbour share a place.
    """
    groups: list[list[str]] = []
    before = 0.0
    for name in sorted(values, key=lambda one: values[one]):
        if before and values[name] < 1.03 * before:
            groups[-1].append(name)
        else:
            groups.append([name])
        before = values[name]
    found: dict[str, float] = {}
    for group in groups:
        order = [name for name in values if name in group]
        middle = (len(order) - 1) / 2
        found |= {name: SIDE * (place - middle) for place, name in enumerate(order)}
    return found


def finish_log_axis(axes: Axes, values: Iterable[float]) -> None:
    """Make x logarithmic around values > 0, with plain numbers, some however short the axis is."""
    among = list(values)
    low, high = min(among) / MARGIN, max(among) * MARGIN
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    subs = (1.0, 2.0, 5.0) if np.log10(high / low) < 1.2 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def rows_figure(names: Sequence[str], below: float = 0.0) -> tuple[Figure, Axes]:
    """Return axes with a row a name, high enough for its lines."""
    texts = [wrapped(name) for name in names]
    row = max(0.38, 0.1 + LINE * max([1, *(text.count("\n") + 1 for text in texts)]))
    figure = new_figure(7.2, 1.0 + below + row * len(names))
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), texts)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure, axes


def note_beside(axes: Axes, row: int, text: str) -> None:
    """Write a number beside a row."""
    axes.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8,
                  color=INK, annotation_clip=False)  # fmt: skip


def looks_of(names: Iterable[str], baselines: Collection[str] = ()) -> dict[str, Look]:
    """Return colour, line style and marker of each name; baselines are grey."""
    planners = [name for name in names if name not in baselines]
    found = {
        name: (CYCLE[i % len(CYCLE)], LINES[i // len(CYCLE) % 4], MARKERS[i // len(CYCLE) % 5])
        for i, name in enumerate(planners)
    }
    others = {name: (GREY, LINES[i % 4], MARKERS[i % 5]) for i, name in enumerate(baselines)}
    return found | others


def line_handle(colour: str, style: Any) -> Line2D:
    """Return a line for a legend."""
    return Line2D([], [], color=colour, linestyle=style, linewidth=1.6)


def dot_handle(colour: str, marker: str, edge: str | None = None) -> Line2D:
    """Return a marker for a legend."""
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=7,
                  markeredgecolor=edge or colour, markeredgewidth=1.6)  # fmt: skip


def legend_height(names: Sequence[str], columns: int = 2) -> float:
    """Inches that a legend of names takes."""
    lines = [wrapped(name, 48).count("\n") + 1.3 for name in names]
    return 0.2 + LINE * sum(lines) / columns


def legend_below(figure: Figure, handles: Mapping[str, Artist], columns: int = 2) -> None:
    """Put a legend under the axes, where it covers no data however many names there are."""
    legend = figure.legend(
        list(handles.values()), [wrapped(name, 48) for name in handles],
        loc="outside lower center", ncols=columns, frameon=False, fontsize=8,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(INK)
