"""Figures of a benchmark: they hold the numbers, and a dozen long names overlap nowhere."""

from itertools import combinations

import numpy as np
import pytest

from jepa_wm.control.rates import Paired, wilson_interval
from jepa_wm.viz.bench import (
    Budget,
    Curve,
    Finals,
    Price,
    Rate,
    final_distances,
    paired_matrix,
    success_against_price,
    success_by_budget,
    success_dots,
    time_split,
)
from jepa_wm.viz.bench_axes import looks_of, side_by_side, wrapped
from jepa_wm.viz.style import GREY

NAMES = [
    f"{model} {planner}"
    for model in ("lewm.gguf", "lewm-pusht-q8_0-with-a-name-that-goes-on-and-on.gguf", "_$a$.gguf")
    for planner in ("cem", "icem", "random_shooting", "gradient iterations=30")
]
IDLE = ["random", "no-op"]
RATES = {name: Rate(50 - 4 * i, 50) for i, name in enumerate(NAMES)}


def boxes(figure):
    """Where texts lie that may not meet: names, numbers, titles; in pixels."""
    figure.draw_without_rendering()
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        texts += axes.texts
        if not axes.axison:
            continue
        texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
            texts += [text for at, text in ticks if low <= at <= high and not text.get_rotation()]
    shown = [text for text in texts if text.get_visible() and text.get_text().strip()]
    return {text: text.get_window_extent() for text in shown}


def check_texts(figure):
    found = boxes(figure)
    width, height = figure.canvas.get_width_height()
    for text, box in found.items():
        inside = box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1
        assert inside, f"{text.get_text()!r} leaves the figure"
    for (one, a), (other, b) in combinations(found.items(), 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(across, down) < 1.5, f"{one.get_text()!r} over {other.get_text()!r}"


def paired(b, c):
    return Paired(both=10, first_only=b, second_only=c, neither=10, p_value=0.5)


def draw(kind, names):
    rates = {name: RATES[name] for name in names}
    both = [*names, *IDLE]
    if kind == "dots":
        return success_dots(rates | {name: Rate(1, 50) for name in IDLE}, IDLE)
    if kind == "budget":
        at = np.linspace(5, 40, 20)
        steps = {name: Curve(at + i, 50, 50.0) for i, name in enumerate(both)}
        scored = {name: Curve(at * 3**i, 50, 1e6) for i, name in enumerate(names)}
        return success_by_budget([Budget("steps", steps), Budget("n", scored, True)], IDLE)
    if kind == "price":
        seconds = {name: 0.1 * 2**i for i, name in enumerate(names)}
        scored = dict.fromkeys(names, 9000.0)
        prices = [Price("time (s)", seconds, names[:2]), Price("candidates", scored, names[:1])]
        return success_against_price(rates, prices)
    if kind == "pairs":
        pairs = {pair: paired(i, 3) for i, pair in enumerate(combinations(names, 2))}
        return paired_matrix(names, pairs, dict.fromkeys(pairs, 0.01))
    if kind == "final":
        values = {name: np.linspace(0, 10 + i, 50) for i, name in enumerate(both)}
        labels = ("agent and block (px)", "block (px)", "angle (deg)", "speed (px/step)")
        return final_distances([Finals(label, values, 20.0) for label in labels], IDLE)
    stages = ("encode", "plan", "environment", "render")
    return time_split({name: dict.fromkeys(stages, 0.5 + i) for i, name in enumerate(both)})


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("kind", ["dots", "budget", "price", "pairs", "final", "seconds"])
def test_texts_overlap_nowhere(kind, count):
    check_texts(draw(kind, NAMES[:count]))


def test_every_name_is_in_the_legend_as_it_is_written():
    """Also those that matplotlib would hide or typeset as maths."""
    for kind in ("budget", "price", "final"):
        figure = draw(kind, NAMES)
        (legend,) = figure.legends
        labels = {text.get_text().replace("\n", " ").replace("\\$", "$") for text in legend.texts}
        assert {name.replace(" ", "") for name in NAMES} <= {x.replace(" ", "") for x in labels}
    assert wrapped("a$b$ \x1b[0m c", 50) == "a\\$b\\$ [0m c"
    assert max(map(len, wrapped("x" * 90 + " y", 34).split("\n"))) == 34


def test_twelve_names_look_different_and_baselines_are_grey():
    looks = looks_of([*NAMES, *IDLE], IDLE)
    assert len({(colour, line) for colour, line, _ in looks.values()}) == 14
    assert len({(colour, marker) for colour, _, marker in looks.values()}) == 14
    assert {name for name, look in looks.items() if look[0] == GREY} == set(IDLE)


def test_dots_lie_on_the_rates_and_lines_on_their_intervals():
    axes = success_dots({"cem": Rate(3, 4), "icem": Rate(0, 0)}).axes[0]
    (line, dot, *_) = axes.lines
    assert tuple(line.get_xdata()) == wilson_interval(3, 4) and list(dot.get_xdata()) == [0.75]
    assert [text.get_text() for text in axes.texts] == ["75.0 %, n=4", "none ran"]


def test_curves_rise_by_one_episode_at_each_success():
    curve = Curve(np.array([10.0, 10.0, 30.0]), 4, 50.0)
    figure = success_by_budget([Budget("steps", {"cem": curve}), Budget("n", {"cem": curve}, True)])
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [0, 10, 10, 30, 51] and line.get_drawstyle() == "steps-post"
    assert list(line.get_ydata()) == [0, 0.25, 0.5, 0.75, 0.75]
    (band,) = figure.axes[0].collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert max(ends) == wilson_interval(3, 4)[1] and min(ends) == 0
    low, high = figure.axes[1].get_xlim()
    assert low < 10 and high > 50


def test_a_budget_nobody_succeeded_with_is_drawn():
    none = {"cem": Curve(np.zeros(0), 4, 100.0)}
    figure = success_by_budget([Budget("steps", none), Budget("candidates", none, is_log=True)])
    assert all(set(axes.lines[0].get_ydata()) == {0} for axes in figure.axes)


def test_equal_prices_are_moved_apart_by_the_same():
    moved = side_by_side({"a": 9000.0, "b": 100.0, "c": 9100.0, "d": 9000.0})
    assert moved["b"] == 0 and moved["a"] == -moved["d"] < moved["c"] == 0
    figure = success_against_price(
        {"a": Rate(4, 4), "b": Rate(2, 4)}, [Price("s", {"a": 2.0, "b": 1.0}, ["a", "b"])]
    )
    steps = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in steps] == [[1.0, 2.0]]
    rings = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert len(rings) == 2


def test_a_matrix_has_both_signs_and_bold_for_what_is_significant():
    figure = paired_matrix(["a", "b", "c"], {("a", "b"): paired(5, 0), ("a", "c"): paired(0, 0)},
                           {("a", "b"): 0.0004, ("a", "c"): 0.6})  # fmt: skip
    texts = {text.get_text(): text.get_fontweight() for text in figure.axes[0].texts}
    assert texts == {"+20\np <.001": "bold", "-20\np <.001": "bold", "0\np 0.6": "normal"}
    values = figure.axes[0].images[0].get_array()
    assert values[0, 1] == 20 and values[1, 0] == -20
    assert np.ma.getmaskarray(values)[1, 2] or np.isnan(values[1, 2])


def test_shares_of_time_add_up():
    seconds = {"cem": {"encode": 1.0, "plan": 3.0}, "idle": {"encode": 0.0, "plan": 0.0}}
    axes = time_split(seconds).axes[0]
    widths = [[bar.get_width() for bar in group] for group in axes.containers]
    assert widths == [[0.25, 0.0], [0.75, 0.0]]
    assert [text.get_text() for text in axes.texts] == ["4 s", "0 s"]
