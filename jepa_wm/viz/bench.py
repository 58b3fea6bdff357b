"""Figures of a benchmark: who succeeds, how soon, at what price, and against whom.

Input is plain numbers a name, output a matplotlib Figure; saving it is the caller's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from jepa_wm.control.rates import Paired, wilson_interval
from jepa_wm.viz.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    finish_axes,
    new_figure,
)

CYCLE = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", INK, GREY)
"""Okabe and Ito's colours; with more names, line styles tell them apart."""
STYLES = ("-", "--", ":", "-.")
WRAP = 34  # characters of a name on one line


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


def success_dots(rates: Mapping[str, Rate], baselines: Collection[str] = ()) -> Figure:
    """Draw success rates with their Wilson 95 % intervals, one row a name; baselines in grey."""
    names = list(rates)
    figure = new_figure(7.2, 0.9 + 0.38 * len(names))
    axes = figure.subplots()
    for row, name in enumerate(names):
        rate = rates[name]
        low, high = rate.interval
        colour = GREY if name in baselines else BLUE
        axes.plot([low, high], [row, row], color=colour, linewidth=2)
        axes.plot([rate.value], [row], "o", color=colour, markersize=6)
        note = f"{100 * rate.value:.1f} %, n={rate.count}" if rate.count else "no episodes"
        axes.annotate(note, (1.02, row), xycoords=("axes fraction", "data"), va="center",
                      fontsize=8, color=INK, annotation_clip=False)  # fmt: skip
    axes.set_yticks(range(len(names)), [_wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    finish_axes(axes, title="Success, Wilson 95 % intervals", x="success rate (%)")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    return figure


def success_over_steps(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, int]],
) -> Figure:
    """Draw which share had succeeded by each environment step, with Wilson 95 % bands.

    Args:
        curves: Name -> steps int [K], successes by then int [K], episodes n > 0.
    """
    figure = new_figure(7.2, 4.0 + 0.16 * len(curves))
    axes = figure.subplots()
    for index, (name, (steps, successes, count)) in enumerate(curves.items()):
        low, high = np.array([wilson_interval(int(k), count) for k in successes]).T
        colour, line = _look(index)
        axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0, step="post")
        axes.step(steps, successes / count, color=colour, linestyle=line, where="post", label=name)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    finish_axes(
        axes, title="Success by the budget of steps", x="environment step",
        y="episodes that succeeded so far (%)",
    )  # fmt: skip
    _legend_below(figure, len(curves))
    return figure


def success_against_price(
    rates: Mapping[str, Rate], prices: Mapping[str, float], front: Collection[str], unit: str
) -> Figure:
    """Draw success against what it costs, the Pareto front joined.

    Args:
        rates: Name -> successes; those without a price are left out.
        prices: Name -> price > 0, on a log axis.
        front: Names that no other beats in both.
        unit: Of the price, for the axis.
    """
    names = [name for name in rates if prices.get(name, 0) > 0]
    figure = new_figure(7.2, 4.2 + 0.16 * len(names))
    axes = figure.subplots()
    for index, name in enumerate(names):
        low, high = rates[name].interval
        colour, _ = _look(index)
        is_first = name in front
        axes.plot([prices[name]] * 2, [low, high], color=colour, linewidth=1.2, alpha=0.7)
        axes.plot(
            [prices[name]], [rates[name].value], "*" if is_first else "o", color=colour,
            markersize=12 if is_first else 6, label=name + (" (front)" if is_first else ""),
        )  # fmt: skip
    best = sorted((prices[name], rates[name].value) for name in names if name in front)
    if len(best) > 1:
        axes.step(*zip(*best, strict=True), where="post", color=MUTED, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    finish_axes(axes, title="Success and its price", x=unit, y="success rate (%)")
    _legend_below(figure, len(names))
    return figure


def paired_matrix(names: Sequence[str], compared: Mapping[tuple[str, str], Paired]) -> Figure:
    """Draw the difference in success of every pair on shared episodes, row minus column.

    A cell holds the difference in points and, below it, the exact McNemar p.
    """
    size = len(names)
    values = np.full((size, size), np.nan)
    figure = new_figure(3.2 + 0.85 * size, 1.6 + 0.62 * size)
    axes = figure.subplots()
    for row, first in enumerate(names):
        for column, second in enumerate(names):
            found, sign = compared.get((first, second)), 1.0
            if found is None:
                found, sign = compared.get((second, first)), -1.0
            if found is None or row == column:
                continue
            values[row, column] = difference = 100 * sign * found.difference
            axes.text(column, row, f"{difference:+.0f}\np={found.p_value:.2g}", ha="center",
                      va="center", fontsize=7, color=INK)  # fmt: skip
    most = max(10.0, float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 10.0)
    image = axes.imshow(values, cmap="PuOr", vmin=-1.6 * most, vmax=1.6 * most, aspect="auto")
    axes.set_xticks(range(size), [_wrapped(name, 16) for name in names], rotation=30, ha="right")
    axes.set_yticks(range(size), [_wrapped(name) for name in names])
    finish_axes(axes, title="Difference in success, row minus column")
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="percentage points", shrink=0.8)
    return figure


def final_distances(finals: Mapping[str, np.ndarray], label: str, unit: str = "") -> Figure:
    """Draw which share of the episodes ended within each distance.

    Args:
        finals: Name -> final distances float [n], n > 0.
        label: Of the measure.
        unit: Of the distances.
    """
    figure = new_figure(7.2, 4.0 + 0.16 * len(finals))
    axes = figure.subplots()
    for index, (name, values) in enumerate(finals.items()):
        colour, line = _look(index)
        axes.ecdf(values, color=colour, linestyle=line, label=name)
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    text = f"final {label}" + (f" ({unit})" if unit else "")
    finish_axes(axes, title=f"Where episodes end: {label}", x=text, y="episodes within (%)")
    _legend_below(figure, len(finals))
    return figure


def time_split(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the mean seconds of an episode by stage, one bar a name.

    Args:
        seconds: Name -> stage -> seconds; the stages are the same for all.
    """
    names, stages = list(seconds), list(next(iter(seconds.values()), {}))
    figure = new_figure(7.2, 1.4 + 0.38 * len(names))
    axes = figure.subplots()
    left = np.zeros(len(names))
    for index, stage in enumerate(stages):
        widths = np.array([seconds[name][stage] for name in names])
        axes.barh(range(len(names)), widths, left=left, color=CYCLE[index], height=0.6, label=stage)
        left += widths
    axes.set_yticks(range(len(names)), [_wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    finish_axes(axes, title="Where an episode's time goes", x="seconds an episode (mean)")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    _legend_below(figure, len(stages), columns=4)
    return figure


def _look(index: int) -> tuple[str, str]:
    return CYCLE[index % len(CYCLE)], STYLES[index // len(CYCLE) % len(STYLES)]


def _wrapped(name: str, width: int = WRAP) -> str:
    """Break a name between words, or where it must be, into lines."""
    lines = [""]
    for word in name.split(" "):
        while len(word) > width:
            lines[-1:] = [lines[-1], word[:width]] if lines[-1] else [word[:width]]
            word = word[width:]
        joined = f"{lines[-1]} {word}".strip()
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], word]
    return "\n".join(lines)


def _legend_below(figure: Figure, count: int, columns: int = 2) -> None:
    """Put a legend under the axes, where it covers no data however many names there are."""
    axes: Axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    if not count:
        return
    legend = figure.legend(
        handles, [_wrapped(text, 48) for text in labels], loc="outside lower center",
        ncols=columns, frameon=False, fontsize=8,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(INK)
