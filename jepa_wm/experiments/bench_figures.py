"""A benchmark's figures: drawn from its numbers, saved beside them as PNG and SVG."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from jepa_wm.experiments.bench_pages import Picture
from jepa_wm.experiments.bench_pairs import Comparison, front
from jepa_wm.experiments.bench_summary import Configuration, share_at_success
from jepa_wm.experiments.bench_tables import measure, measures_of, with_unit
from jepa_wm.viz import bench as draw

MOST_PAIRED = 24  # names that a matrix has room for
Drawn = tuple[str, Figure, str]


def save_figures(folder: Path, one: Comparison, suffix: str = "") -> list[Picture]:
    """Draw and save every figure of a test that there are numbers for.

    Args:
        folder: Where to; made.
        one: The test.
        suffix: At the end of every file's name.
    """
    folder.mkdir(exist_ok=True)
    pictures = []
    for name, figure, caption in _figures(one):
        path = folder / f"{name}{suffix}.png"
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out now, once for both files
        figure.savefig(path, dpi=150)
        figure.savefig(path.with_suffix(".svg"))
        pictures.append(Picture(path, caption))
    return pictures


def _figures(one: Comparison) -> list[Drawn]:
    found = [who for who in one.found if who.count]
    idle = [who.name for who in found if who.is_baseline]
    planners = [who for who in found if not who.is_baseline]
    rates = {who.name: draw.Rate(who.successes, who.count) for who in found}
    drawn: list[Drawn] = []
    if found:
        drawn.append(("success", draw.success_dots(rates, idle), "Success by configuration."))
    if planners:
        drawn += [_budgets(found, planners, idle), _prices(planners, rates)]
    if one.pairs and len(planners) <= MOST_PAIRED:
        compared = {(pair.first, pair.second): pair for pair in one.pairs}
        matrix = draw.paired_matrix(
            [who.name for who in planners],
            {names: pair.paired for names, pair in compared.items()},
            {names: pair.adjusted for names, pair in compared.items()},
        )
        drawn.append(("pairs", matrix, "Differences in success on the episodes both ran."))
    finals = _finals(found)
    if finals:
        figure = draw.final_distances(finals, idle)
        drawn.append(("final", figure, "Where episodes end: the share within each distance."))
    if found:
        seconds = {who.name: who.seconds for who in found}
        drawn.append(("seconds", draw.time_split(seconds), "Where an episode's time goes."))
    return drawn


def _budgets(
    found: Sequence[Configuration], planners: Sequence[Configuration], idle: Sequence[str]
) -> Drawn:
    """Success against steps, and for those who plan against candidates and planning time."""
    steps = {
        who.name: draw.Curve(
            who.at_success(lambda r: r.success_step or r.steps), who.count, float(who.budget)
        )
        for who in found
    }
    budgets = [draw.Budget("environment steps", steps)]
    kinds = (
        ("candidates scored", lambda r: float(r.evaluations)),
        ("planning time (s)", lambda r: r.seconds.get("plan", 0.0)),
    )
    for label, spent in kinds:
        curves = {}
        for who in planners:
            most = max(map(spent, who.episodes.values()))
            at = who.at_success(lambda r, spent=spent: spent(r) * share_at_success(r))  # type: ignore[misc]
            if most > 0 and (not len(at) or at[0] > 0):
                curves[who.name] = draw.Curve(at, who.count, most)
        if curves:
            budgets.append(draw.Budget(label, curves, is_log=True))
    caption = "Which share of the episodes had succeeded by a budget; bands: Wilson 95 %."
    return "budget", draw.success_by_budget(budgets, idle), caption


def _prices(planners: Sequence[Configuration], rates: dict[str, draw.Rate]) -> Drawn:
    """Success against what a solve costs."""
    own = {who.name: rates[who.name] for who in planners}
    kinds = (
        ("planning time of a solve (s)", lambda who: who.plan_seconds),
        ("candidates of a solve", lambda who: who.candidates),
    )
    prices = []
    for label, price in kinds:
        values = {who.name: price(who) for who in planners if price(who) > 0}
        if values:
            best = front([who for who in planners if who.name in values], price)
            prices.append(draw.Price(label, values, best))
    caption = (
        "Success against the price of a solve. Equal prices are drawn side by side; only complete "
        "runs, and no ceilings, compete for the Pareto front."
    )
    return "price", draw.success_against_price(own, prices), caption


def _finals(found: Sequence[Configuration]) -> list[draw.Finals]:
    finals = []
    for label in measures_of(found):
        values = {who.name: who.finals(label) for who in found}
        values = {name: array for name, array in values.items() if len(array)}
        told = measure(found, label)
        if values:
            finals.append(
                draw.Finals(with_unit(found, label), values, told.threshold if told else None)
            )
    return finals
