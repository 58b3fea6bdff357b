"""Figures of planning: what the iterations bought, how near the goal came, how often.

Input is episodes (their ``plans`` hold the planner's trace), output a matplotlib Figure; saving it
is the caller's.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from jepa_wm.control.episode import Episode
from jepa_wm.control.rates import wilson_interval
from jepa_wm.control.statistics import Measure, success_step
from jepa_wm.errors import ConfigError
from jepa_wm.viz.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    finish_axes,
    finish_legend,
    finish_shared_legend,
    new_figure,
)


def planner_cost(episodes: Sequence[Episode], unit: str = "") -> Figure:
    """Draw cost and spread per planner iteration: median and quartiles over all decisions.

    Args:
        episodes: Those without a trace are left out; non-finite values too.
        unit: Unit of the objective for the axis, e.g. "latent L2"; "" for none.

    Raises:
        ConfigError: no episode has a planner's trace, or they have different numbers of iterations.
    """
    figure = new_figure(8.4, 3.4)
    cost, spread = figure.subplots(1, 2)
    best = _traces(episodes, "best")
    _band(cost, best, BLUE, "best sample")
    _band(cost, _traces(episodes, "elite_mean"), ORANGE, "samples of the update (mean)")
    label = f"cost ({unit})" if unit else "cost (no unit)"
    finish_axes(cost, title="Cost of the candidates", x="planner iteration", y=label)
    finish_legend(cost)
    _band(spread, _traces(episodes, "spread"), GREEN, "proposal")
    label = "standard deviation (z-scored action)"
    finish_axes(spread, title="Spread of the proposal", x="planner iteration", y=label)
    spread.set_ylim(bottom=0)
    _say_sample(figure, len(best))
    return figure


def effective_samples(episodes: Sequence[Episode], num_samples: int | None = None) -> Figure:
    """Draw how many samples carried each update: 1 / sum(w^2) for MPPI, the elites for CEM.

    Args:
        episodes: Those without a trace are left out.
        num_samples: Samples drawn per iteration, for a line at the most it can be; None draws none.

    Raises:
        ConfigError: no episode has a planner's trace, or they have different numbers of iterations.

    Source: Kong, "A note on importance sampling using standardized weights", 1992 (effective sample
    size).
    """
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    values = _traces(episodes, "effective_samples")
    _band(axes, values, BLUE, "effective")
    if num_samples is not None:
        axes.axhline(num_samples, color=MUTED, linewidth=1, linestyle="--", label="drawn")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9)
    finish_axes(axes, title="Effective sample size", x="planner iteration", y="samples (log scale)")
    finish_legend(axes)
    _say_sample(figure, len(values))
    return figure


def goal_distance(episodes: Sequence[Episode], measures: Sequence[Measure]) -> Figure:
    """Draw each measure over environment steps: a line an episode, their median, the threshold.

    A line ends where its episode did, with a dot where it succeeded. In the median an ended episode
    keeps its last value: leaving the solved ones out would make the rest look worse and worse.

    Args:
        episodes: Presolved ones are left out.
        measures: One panel each, at least one.

    Raises:
        ConfigError: no episode was run, or one lacks a measure.
        ValueError: no measures.
    """
    ran = [episode for episode in episodes if not episode.presolved]
    if not ran:
        raise ConfigError("no episode was run; there is no distance to draw")
    if not measures:
        raise ValueError("no measures to draw")
    figure = new_figure(4.2 * len(measures), 3.4)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, measure in zip(panels, measures, strict=True):
        _distance(axes, ran, measure)
        finish_axes(
            axes,
            title=f"{measure.label} to the goal".capitalize(),
            x="environment step",
            y=f"{measure.label} ({measure.unit})",
        )
    finish_shared_legend(figure)
    return figure


def success_rates(rows: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw success rates as bars with Wilson 95 % intervals.

    Args:
        rows: (successes, evaluated) by name, in drawing order, e.g. the planner, then the
            baselines.

    Raises:
        ValueError: no rows, or more successes than episodes.
    """
    if not rows:
        raise ValueError("no rows to draw")
    figure = new_figure(6.4, 0.9 + 0.5 * len(rows))
    axes = figure.subplots()
    for place, (successes, count) in enumerate(rows.values()):
        low, high = wilson_interval(successes, count)
        rate = successes / count if count else 0.0
        axes.barh(place, rate, height=0.6, color=BLUE if place == 0 else GREY)
        if count:
            whisker = [[rate - low], [high - rate]]
            axes.errorbar(rate, place, xerr=whisker, color=INK, capsize=3, linewidth=1.2)
        text = f"{100 * rate:.1f} %  ({successes}/{count})" if count else "no episodes"
        axes.text(1.03, place, text, va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    finish_axes(axes, title="Success", x="episodes that reached the goal (%), Wilson 95 % interval")
    axes.set_ylabel("agent", fontsize=9, color=INK)
    return figure


def _traces(episodes: Sequence[Episode], name: str) -> np.ndarray:
    """One trace of all decisions of all episodes, float64 [n,I]."""
    found = [episode.plans[name] for episode in episodes if name in episode.plans]
    if not found:
        raise ConfigError(f"no episode has a planner's trace of {name!r}; nothing was planned")
    lengths = sorted({trace.shape[1] for trace in found})
    if len(lengths) > 1:
        raise ConfigError(f"episodes have {lengths} planner iterations; draw one planner at a time")
    return np.concatenate(found).astype(np.float64)


def _band(axes: Axes, values: np.ndarray, colour: str, label: str) -> None:
    """Draw median and quartiles of values [n,I] over iterations 1..I."""
    low, middle, high = _quartiles(values)
    iterations = np.arange(1, values.shape[1] + 1)
    marker = "o" if len(iterations) <= 15 else None
    axes.plot(iterations, middle, color=colour, linewidth=1.8, marker=marker, ms=3, label=label)
    axes.fill_between(iterations, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _quartiles(values: np.ndarray) -> np.ndarray:
    """Quartiles of the columns of [n,I] as [3,I]; non-finite entries are left out."""
    kept = [column[np.isfinite(column)] for column in values.T]
    nothing = np.full(3, np.nan)
    return np.stack(
        [np.quantile(column, (0.25, 0.5, 0.75)) if column.size else nothing for column in kept], 1
    )


def _distance(axes: Axes, episodes: Sequence[Episode], measure: Measure) -> None:
    curves = [measure.of(episode) for episode in episodes]
    longest = max(len(curve) for curve in curves)
    held = np.stack([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves])
    faint = max(0.12, min(0.5, 6 / len(curves)))  # many lines: fainter
    for episode, curve in zip(episodes, curves, strict=True):
        colour = GREEN if episode.success else ORANGE
        axes.plot(curve, color=colour, alpha=faint, linewidth=0.9)
        step = success_step(episode)
        if step is not None:
            dot = min(1.0, 2 * faint)
            axes.plot(step, curve[step], "o", color=GREEN, ms=3.5, alpha=dot, clip_on=False)
    successes = sum(episode.success for episode in episodes)
    for colour, count, word in (
        (GREEN, successes, "reached"),
        (ORANGE, len(curves) - successes, "not reached"),
    ):
        if count:
            axes.plot([], [], color=colour, linewidth=0.9, label=f"{word} ({count})")
    axes.plot(np.median(held, axis=0), color=INK, linewidth=2, label="median")
    if measure.threshold is not None:
        line = axes.axhline(measure.threshold, color=BLUE, linewidth=1.2, linestyle="--")
        line.set(label="success threshold", zorder=1.5)
    axes.set_xlim(0, max(longest - 1, 1))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _say_sample(figure: Figure, decisions: int) -> None:
    text = f"Median (line) and quartiles (band) of {decisions} decisions."
    figure.supxlabel(text, fontsize=8, color=MUTED, x=0.01, ha="left")
