"""Figures of a benchmark: who succeeds, how soon, at what price, against whom, and how near.

Input is plain numbers a name, output a matplotlib Figure; saving it is the caller's. A name looks
the same in every figure made with the same names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from jepa_wm.control.rates import Paired, wilson_interval
from jepa_wm.viz.bench_axes import (
    CYCLE,
    dot_handle,
    finish_log_axis,
    legend_below,
    legend_height,
    line_handle,
    looks_of,
    note_beside,
    rows_figure,
    side_by_side,
    wrapped,
)
from jepa_wm.viz.style import BLUE, FAINT, GREY, INK, MUTED, PAPER, finish_axes, new_figure

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
    figure, axes = rows_figure(list(rates))
    for row, (name, rate) in enumerate(rates.items()):
        low, high = rate.interval
        colour = GREY if name in baselines else BLUE
        axes.plot([low, high], [row, row], color=colour, linewidth=2, clip_on=False)
        axes.plot([rate.value], [row], "o", color=colour, markersize=6, clip_on=False, zorder=3)
        note_beside(
            axes, row, f"{100 * rate.value:.1f} %, n={rate.count}" if rate.count else "none ran"
        )
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(Percent)
    finish_axes(axes, title="Success", x="episodes that succeeded (%), Wilson 95 % interval")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    return figure


def success_by_budget(budgets: Sequence[Budget], baselines: Collection[str] = ()) -> Figure:
    """Draw which share had succeeded by each budget, with Wilson 95 % bands but for baselines."""
    names = list(dict.fromkeys(name for budget in budgets for name in budget.curves))
    looks = looks_of(names, baselines)
    figure = new_figure(1.2 + 3.4 * len(budgets), 3.6 + legend_height(names))
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
            spent = [x for one in budget.curves.values() for x in (one.end, *one.at[:1])]
            finish_log_axis(axes, spent)
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
    legend_below(figure, {name: line_handle(*looks[name][:2]) for name in names})
    return figure


def success_against_price(rates: Mapping[str, Rate], prices: Sequence[Price]) -> Figure:
    """Draw success against what it costs, with Wilson 95 % intervals, the Pareto front joined."""
    names = [name for name in rates if any(name in price.values for price in prices)]
    looks = looks_of(names)
    figure = new_figure(1.2 + 3.9 * len(prices), 3.6 + legend_height(names))
    panels = figure.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    for axes, price in zip(panels, prices, strict=True):
        for name, points in side_by_side(price.values).items():
            colour, _, marker = looks[name]
            x, y = price.values[name], rates[name].value
            place = axes.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)
            axes.plot([x, x], rates[name].interval, color=colour, linewidth=1.2, transform=place)
            axes.plot([x], [y], marker, color=colour, markersize=7, zorder=3, clip_on=False,
                      transform=place)  # fmt: skip
            if name in price.front:
                axes.plot([x], [y], "o", markersize=13, markerfacecolor="none", zorder=3,
                          markeredgecolor=INK, clip_on=False, transform=place)  # fmt: skip
        best = sorted((price.values[name], rates[name].value) for name in price.front)
        if len(best) > 1:
            axes.step(*zip(*best, strict=True), where="post", color=MUTED, linewidth=1, ls=":")
        finish_log_axis(axes, price.values.values())
        finish_axes(axes, x=price.label)
    panels[0].set_ylim(0, 1.06)  # room for a ring
    panels[0].set_yticks(np.linspace(0, 1, 6))
    panels[0].yaxis.set_major_formatter(Percent)
    finish_axes(panels[0], title="Success and its price", x=prices[0].label, y="success rate (%)")
    handles: dict[str, Artist] = {
        name: dot_handle(looks[name][0], looks[name][2]) for name in names
    }
    handles["ringed: the Pareto front"] = dot_handle(PAPER, "o", INK)
    legend_below(figure, handles)
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
            points = f"{difference:+.0f}" if abs(difference) >= 0.5 else "0"
            axes.text(x, y, f"{points}\np {_p(p)}", ha="center", va="center", fontsize=7,
                      color=INK, fontweight="bold" if p < SIGNIFICANT else "normal")  # fmt: skip
    most = max([10.0, *np.abs(values[np.isfinite(values)])])
    image = axes.imshow(values, cmap="PuOr", vmin=-2.2 * most, vmax=2.2 * most, aspect="auto")
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
    looks = looks_of(names, baselines)
    columns = min(3, len(finals))
    rows = -(-len(finals) // columns)
    figure = new_figure(1.2 + 3.4 * columns, 3.4 * rows + legend_height(names))
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
    handles: dict[str, Artist] = {name: line_handle(*looks[name][:2]) for name in names}
    if any(one.threshold is not None for one in finals):
        handles["largest that is a success"] = line_handle(MUTED, (0, (1, 3)))
    legend_below(figure, handles)
    return figure


def time_split(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw which share of an episode's time each stage takes, one bar a name, the total beside it.

    Args:
        seconds: Name -> stage -> mean seconds of an episode; the stages are the same for all.
    """
    stages = list(next(iter(seconds.values()), {}))
    figure, axes = rows_figure(list(seconds), below=0.3)
    totals = np.array([sum(of.values()) for of in seconds.values()])
    left = np.zeros(len(seconds))
    for stage, colour in zip(stages, CYCLE, strict=False):
        shares = np.array([of[stage] for of in seconds.values()]) / np.where(totals > 0, totals, 1)
        axes.barh(range(len(seconds)), shares, left=left, color=colour, height=0.6, label=stage)
        left += shares
    for row, total in enumerate(totals):
        note_beside(axes, row, f"{total:.3g} s")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(Percent)
    finish_axes(
        axes, title="Where an episode's time goes",
        x="share of an episode's wall time (%); beside it the mean whole",
    )  # fmt: skip
    handles, labels = axes.get_legend_handles_labels()
    legend_below(figure, dict(zip(labels, handles, strict=True)), columns=4)
    return figure


def _steps(curve: Curve, is_log: bool) -> tuple[np.ndarray, ...]:
    """The corners of a curve and its band: x, rate, low, high, float [k+2] each."""
    done = np.arange(len(curve.at) + 1)
    bounds = np.array([wilson_interval(int(k), curve.count) for k in done]).T
    y = np.stack([done / curve.count, *bounds])
    start = min([curve.end, *curve.at[:1]]) / 2 if is_log else 0.0
    end = max([curve.end, *curve.at[-1:]]) * (1.1 if is_log else 1.02)  # the last step shows
    x = np.array([start, *curve.at, end])
    return x, *np.concatenate([y, y[:, -1:]], axis=1)


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.2g}"
