"""Figures of a benchmark: who succeeds, how soon, at what price, against whom, and how near.

Input is plain numbers a name, output a matplotlib Figure; saving it is the caller's. A name looks
the same in every figure made with the same names.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from jepa_wm.control.rates import Paired, wilson_interval
from jepa_wm.viz.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    finish_axes,
    new_figure,
)

CYCLE = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", INK)
"""Okabe and Ito's colours; with more names, lines and markers tell them apart."""
LINES, MARKERS = ("-", "--", ":", "-."), "osD^v"
WRAP = 34  # characters of a name on one line
LINE = 0.14  # inches, of text of 8 points
SIGNIFICANT = 0.05
Percent = PercentFormatter(1, symbol="")


@dataclass(frozen=True)
class Rate:
    """Successes of n episodes."""

    successes: int
    count: int

    @property
    def value(self) -> float:
        """The rate; of no episodes 0."""
        return self.successes / self.count if self.count else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval."""
        return wilson_interval(self.successes, self.count)


@dataclass(frozen=True, eq=False)
class Curve:
    """What was spent until each success.

    Attributes:
        at: Ascending float [k], one a success.
        count: Episodes, n >= k, n > 0.
        end: Where the curve ends: the most that was spent.
    """

    at: np.ndarray
    count: int
    end: float


@dataclass(frozen=True)
class Budget:
    """A kind of budget, and who reached what with it.

    Attributes:
        label: Of its axis, with the unit.
        curves: By name.
        is_log: On a log axis.
    """

    label: str
    curves: Mapping[str, Curve]
    is_log: bool = False


@dataclass(frozen=True)
class Price:
    """What a success rate costs.

    Attributes:
        label: Of its axis, with the unit.
        values: By name, > 0; a name without one is left out.
        front: Names that no other beats in both.
    """

    label: str
    values: Mapping[str, float]
    front: Collection[str]


@dataclass(frozen=True)
class Finals:
    """A measure at the end of episodes.

    Attributes:
        label: Of its axis, with the unit.
        values: By name, finite float [n], n > 0.
        threshold: Largest that is a success, or None.
    """

    label: str
    values: Mapping[str, np.ndarray]
    threshold: float | None = None


def success_dots(rates: Mapping[str, Rate], baselines: Collection[str] = ()) -> Figure:
    """Draw success rates with their Wilson 95 % intervals, one row a name; baselines in grey."""
    figure, axes = _rows_figure(list(rates))
    for row, (name, rate) in enumerate(rates.items()):
        low, high = rate.interval
        colour = GREY if name in baselines else BLUE
        axes.plot([low, high], [row, row], color=colour, linewidth=2, clip_on=False)
        axes.plot([rate.value], [row], "o", color=colour, markersize=6, clip_on=False, zorder=3)
        _note(axes, row, f"{100 * rate.value:.1f} %, n={rate.count}" if rate.count else "none ran")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(Percent)
    finish_axes(axes, title="Success", x="episodes that succeeded (%), Wilson 95 % interval")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    return figure


def success_by_budget(budgets: Sequence[Budget], baselines: Collection[str] = ()) -> Figure:
    """Draw which share had succeeded by each budget, with Wilson 95 % bands but for baselines."""
    names = list(dict.fromkeys(name for budget in budgets for name in budget.curves))
    looks = _looks(names, baselines)
    figure = new_figure(1.2 + 3.4 * len(budgets), 3.6 + _legend_height(names))
    panels = figure.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, budgets, strict=True):
        for name, curve in budget.curves.items():
            x, y, low, high = _steps(curve, budget.is_log)
            colour, line, _ = looks[name]
            if name not in baselines:
                alpha = 0.3 / (2 + len(names))
                axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0, step="post")
            axes.step(x, y, color=colour, linestyle=line, where="post", linewidth=1.6)
        if budget.is_log:
            _log_axis(axes)
        else:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        finish_axes(axes, x=budget.label)
    panels[0].set_ylim(0, 1)
    panels[0].yaxis.set_major_formatter(Percent)
    finish_axes(
        panels[0], title="Success by budget", x=budgets[0].label,
        y="episodes that succeeded so far (%)",
    )  # fmt: skip
    _legend_below(figure, {name: _line(*looks[name][:2]) for name in names})
    return figure


def success_against_price(rates: Mapping[str, Rate], prices: Sequence[Price]) -> Figure:
    """Draw success against what it costs, with Wilson 95 % intervals, the Pareto front joined."""
    names = [name for name in rates if any(name in price.values for price in prices)]
    looks = _looks(names)
    figure = new_figure(1.2 + 3.9 * len(prices), 3.6 + _legend_height(names))
    panels = figure.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    for axes, price in zip(panels, prices, strict=True):
        for name, x in _side_by_side(price.values).items():
            colour, _, marker = looks[name]
            axes.plot([x, x], rates[name].interval, color=colour, linewidth=1.2, alpha=0.7)
            edge = INK if name in price.front else colour
            axes.plot([x], [rates[name].value], marker, color=colour, markersize=8, zorder=3,
                      markeredgecolor=edge, markeredgewidth=1.6, clip_on=False)  # fmt: skip
        best = sorted((price.values[name], rates[name].value) for name in price.front)
        if len(best) > 1:
            axes.step(*zip(*best, strict=True), where="post", color=MUTED, linewidth=1, ls=":")
        _log_axis(axes)
        finish_axes(axes, x=price.label)
    panels[0].set_ylim(0, 1)
    panels[0].yaxis.set_major_formatter(Percent)
    finish_axes(panels[0], title="Success and its price", x=prices[0].label, y="success rate (%)")
    handles: dict[str, Artist] = {name: _dot(looks[name][0], looks[name][2]) for name in names}
    handles["dark rim and dots: the Pareto front"] = _dot(PAPER, "o", INK)
    _legend_below(figure, handles)
    return figure


def paired_matrix(
    names: Sequence[str],
    compared: Mapping[tuple[str, str], Paired],
    adjusted: Mapping[tuple[str, str], float],
) -> Figure:
    """Draw the difference in success of every pair on shared episodes, row minus column.

    Args:
        names: Of rows and columns.
        compared: Pairs, one order of each is enough.
        adjusted: Their p-values, adjusted for how many there are.
    """
    size = len(names)
    values = np.full((size, size), np.nan)
    figure = new_figure(3.6 + 0.8 * size, 2.2 + 0.6 * size)
    axes = figure.subplots()
    for (first, second), pair in compared.items():
        row, column = names.index(first), names.index(second)
        p = adjusted[first, second]
        for y, x, sign in ((row, column, 1), (column, row, -1)):
            values[y, x] = difference = 100 * sign * pair.difference
            axes.text(x, y, f"{difference:+.0f}\np {_p(p)}", ha="center", va="center", fontsize=7,
                      color=INK, fontweight="bold" if p < SIGNIFICANT else "normal")  # fmt: skip
    most = max([10.0, *np.abs(values[np.isfinite(values)])])
    image = axes.imshow(values, cmap="PuOr", vmin=-1.6 * most, vmax=1.6 * most, aspect="auto")
    axes.set_xticks(range(size), [wrapped(n, 20) for n in names], rotation=40, ha="right",
                    rotation_mode="anchor")  # fmt: skip
    axes.set_yticks(range(size), [wrapped(name) for name in names])
    finish_axes(axes, title="Difference in success, row minus column")
    axes.grid(visible=False)
    axes.set_xlabel("p: exact McNemar, Holm-adjusted; bold below 0.05", fontsize=8, color=MUTED)
    figure.colorbar(image, ax=axes, label="percentage points", shrink=0.8)
    return figure


def final_distances(finals: Sequence[Finals], baselines: Collection[str] = ()) -> Figure:
    """Draw which share of the episodes ended within each distance, one panel a measure."""
    names = list(dict.fromkeys(name for one in finals for name in one.values))
    looks = _looks(names, baselines)
    columns = min(3, len(finals))
    rows = -(-len(finals) // columns)
    figure = new_figure(1.2 + 3.4 * columns, 3.4 * rows + _legend_height(names))
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axes, one in zip(panels, finals, strict=False):
        for name, values in one.values.items():
            colour, line, _ = looks[name]
            axes.ecdf(values, color=colour, linestyle=line, linewidth=1.6)
        if one.threshold is not None:
            axes.axvline(one.threshold, color=MUTED, linewidth=1, linestyle=(0, (1, 3)))
        axes.set_xlim(left=min(0.0, *(values.min() for values in one.values.values())))
        finish_axes(axes, x=f"final {one.label}")
    for axes in panels[len(finals) :]:
        axes.set_axis_off()
    panels[0].set_ylim(0, 1)
    panels[0].yaxis.set_major_formatter(Percent)
    finish_axes(
        panels[0], title="Where episodes end", x=f"final {finals[0].label}",
        y="episodes that end within (%)",
    )  # fmt: skip
    handles: dict[str, Artist] = {name: _line(*looks[name][:2]) for name in names}
    if any(one.threshold is not None for one in finals):
        handles["largest that is a success"] = _line(MUTED, (0, (1, 3)))
    _legend_below(figure, handles)
    return figure


def time_split(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the mean seconds of an episode by stage, one bar a name.

    Args:
        seconds: Name -> stage -> seconds; the stages are the same for all.
    """
    stages = list(next(iter(seconds.values()), {}))
    figure, axes = _rows_figure(list(seconds), below=0.3)
    left = np.zeros(len(seconds))
    for stage, colour in zip(stages, CYCLE, strict=False):
        widths = np.array([of[stage] for of in seconds.values()])
        axes.barh(range(len(seconds)), widths, left=left, color=colour, height=0.6, label=stage)
        left += widths
    for row, total in enumerate(left):
        _note(axes, row, f"{total:.3g} s")
    axes.set_xlim(left=0)
    finish_axes(axes, title="Where an episode's time goes", x="mean wall time of an episode (s)")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    handles, labels = axes.get_legend_handles_labels()
    _legend_below(figure, dict(zip(labels, handles, strict=True)), columns=4)
    return figure


def wrapped(name: str, width: int = WRAP) -> str:
    """Break a name into lines, between words or where it must be; nothing in it is markup."""
    lines = [""]
    for word in name.split(" "):
        rest = word
        while len(rest) > width:
            lines[-1:] = [lines[-1], rest[:width]] if lines[-1] else [rest[:width]]
            rest = rest[width:]
        joined = f"{lines[-1]} {rest}".strip()
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], rest]
    return "\n".join(lines).replace("$", r"\$")


def _steps(curve: Curve, is_log: bool) -> tuple[np.ndarray, ...]:
    """The corners of a curve and its band: x, rate, low, high, float [k+2] each."""
    done = np.arange(len(curve.at) + 1)
    bounds = np.array([wilson_interval(int(k), curve.count) for k in done]).T
    y = np.stack([done / curve.count, *bounds])
    start = min([curve.end, *curve.at[:1]]) / 2 if is_log else 0.0
    x = np.array([start, *curve.at, max([curve.end, *curve.at[-1:]])])
    return x, *np.concatenate([y, y[:, -1:]], axis=1)


def _side_by_side(values: Mapping[str, float]) -> dict[str, float]:
    """Move apart what would be drawn over each other: prices within 3 % by 3 %."""
    taken: list[float] = []
    found = {}
    for name, value in values.items():
        x = value
        while any(abs(np.log(x / other)) < 0.0299 for other in taken):
            x *= 1.03
        taken.append(x)
        found[name] = x
    return found


def _log_axis(axes: Axes) -> None:
    """Make x logarithmic, with plain numbers, some of them however short the axis is."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high / low < 4:
        middle = (low * high) ** 0.5
        axes.set_xlim(min(low, middle / 2), max(high, middle * 2))
        low, high = axes.get_xlim()
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _rows_figure(names: Sequence[str], below: float = 0.0) -> tuple[Figure, Axes]:
    """Return axes with a row a name, high enough for its lines."""
    texts = [wrapped(name) for name in names]
    row = max(0.38, 0.1 + LINE * max([1, *(text.count("\n") + 1 for text in texts)]))
    figure = new_figure(7.2, 1.0 + below + row * len(names))
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), texts)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure, axes


def _note(axes: Axes, row: int, text: str) -> None:
    """Write a number beside a row."""
    axes.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8,
                  color=INK, annotation_clip=False)  # fmt: skip


Look = tuple[str, str, str]


def _looks(names: Iterable[str], baselines: Collection[str] = ()) -> dict[str, Look]:
    """Return colour, line style and marker of each name; baselines are grey."""
    planners = [name for name in names if name not in baselines]
    found = {
        name: (CYCLE[i % len(CYCLE)], LINES[i // len(CYCLE) % 4], MARKERS[i // len(CYCLE) % 5])
        for i, name in enumerate(planners)
    }
    others = {name: (GREY, LINES[i % 4], MARKERS[i % 5]) for i, name in enumerate(baselines)}
    return found | others


def _line(colour: str, style: Any) -> Line2D:
    return Line2D([], [], color=colour, linestyle=style, linewidth=1.6)


def _dot(colour: str, marker: str, edge: str | None = None) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=7,
                  markeredgecolor=edge or colour, markeredgewidth=1.6)  # fmt: skip


def _legend_height(names: Sequence[str], columns: int = 2) -> float:
    """Inches that a legend of names takes."""
    lines = [wrapped(name, 48).count("\n") + 1.3 for name in names]
    return 0.2 + LINE * sum(lines) / columns


def _legend_below(figure: Figure, handles: Mapping[str, Artist], columns: int = 2) -> None:
    """Put a legend under the axes, where it covers no data however many names there are."""
    legend = figure.legend(
        list(handles.values()), [wrapped(name, 48) for name in handles],
        loc="outside lower center", ncols=columns, frameon=False, fontsize=8,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(INK)


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.2g}"
