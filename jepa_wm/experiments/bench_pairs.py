"""A benchmark's configurations against each other: pairs, regret, the Pareto front.

Two are compared only within one test, and only on episodes that both ran.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from jepa_wm.control.rates import Paired, holm, pair_outcomes
from jepa_wm.experiments.bench_summary import Configuration


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two configurations on the episodes they share.

    Attributes:
        first: Name of one.
        second: Name of the other.
        paired: Counts, difference and p of the exact McNemar test.
        adjusted: The p, adjusted for all pairs of the test (Holm).
    """

    first: str
    second: str
    paired: Paired
    adjusted: float


@dataclass(frozen=True, kw_only=True)
class Regret:
    """A configuration against the ceiling: the same planner with the simulator as its model.

    Attributes:
        name: The configuration.
        ceiling: Its ceiling.
        paired: The ceiling first, so that a positive difference is success lost to the model.
        distance: Median over shared episodes of how much further each measure ends, by label.
    """

    name: str
    ceiling: str
    paired: Paired
    distance: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is to be said of one test.

    Attributes:
        test: Its name.
        found: Who took it.
        pairs: Every two planners, episode by episode.
        regrets: Every planner against its ceiling, where there is one.
        front: Names that nobody beats in success at no more planning time.
    """

    test: str
    found: Sequence[Configuration]
    pairs: Sequence[Pair]
    regrets: Sequence[Regret]
    front: Set[str]


def pairs(found: Sequence[Configuration]) -> list[Pair]:
    """Compare all pairs of planners of one test that share episodes, the first with all first."""
    planners = [one for one in found if not one.is_baseline and one.count]
    compared = []
    for index, first in enumerate(planners):
        for second in planners[index + 1 :]:
            paired = compare(first, second)
            if paired is not None:
                compared.append(
                    Pair(first=first.name, second=second.name, paired=paired, adjusted=math.nan)
                )
    adjusted = holm([pair.paired.p_value for pair in compared])
    return [replace(pair, adjusted=p) for pair, p in zip(compared, adjusted, strict=True)]


def compare(first: Configuration, second: Configuration) -> Paired | None:
    """Compare two configurations episode by episode; None where they share none."""
    shared = first.episodes.keys() & second.episodes.keys() if first.test == second.test else ()
    if not shared:
        return None
    return pair_outcomes(
        [(first.episodes[key].success, second.episodes[key].success) for key in shared]
    )


def regrets(found: Sequence[Configuration]) -> list[Regret]:
    """Compare every planner with the ceiling of its own: the simulator, all else the same."""
    ceilings = [one for one in found if one.is_ceiling and one.count]
    compared = []
    for one in found:
        if one.is_baseline or one.is_ceiling:
            continue
        ceiling = next((c for c in ceilings if _is_ceiling_of(c, one)), None)
        paired = None if ceiling is None else compare(ceiling, one)
        if ceiling is not None and paired is not None:
            gaps = _distances(ceiling, one)
            compared.append(
                Regret(name=one.name, ceiling=ceiling.name, paired=paired, distance=gaps)
            )
    return compared


def front(found: Sequence[Configuration], price: Callable[[Configuration], float]) -> set[str]:
    """Return the names that no other of the test beats in success at no more of a price.

    Only configurations whose every episode is there compete: the first few may be the easy ones.
    A ceiling competes with ceilings only.
    """
    complete = [
        one
        for one in found
        if not one.is_baseline and one.count and one.is_complete and not math.isnan(price(one))
    ]
    models = [one for one in complete if not one.is_ceiling]
    points = [(one.name, one.rate, price(one)) for one in models or complete]
    return {
        name
        for name, rate, paid in points
        if not any(r >= rate and p <= paid and (r > rate or p < paid) for _, r, p in points)
    }


def _is_ceiling_of(ceiling: Configuration, one: Configuration) -> bool:
    """Whether they agree in everything but the model, as far as the ceiling says."""
    told = {name: value for name, value in ceiling.axes.items() if name != "model"}
    return ceiling.test == one.test and told.items() <= one.axes.items()


def _distances(ceiling: Configuration, one: Configuration) -> dict[str, float]:
    """Median of how much further it ends than the ceiling, by measure, over shared episodes."""
    gaps: dict[str, list[float]] = {label: [] for label in one.measures}
    for key in ceiling.episodes.keys() & one.episodes.keys():
        mine, theirs = one.episodes[key].final, ceiling.episodes[key].final
        for label in mine.keys() & theirs.keys():
            gap = mine[label] - theirs[label]
            gaps[label] += [gap] if math.isfinite(gap) else []
    return {label: float(np.median(values)) for label, values in gaps.items() if values}


def comparisons(found: Sequence[Configuration]) -> list[Comparison]:
    """Compare the configurations of each test, in the order of the tests."""
    tests: dict[str, list[Configuration]] = {}
    for one in found:
        tests.setdefault(one.test, []).append(one)
    return [
        Comparison(
            test=test,
            found=mine,
            pairs=pairs(mine),
            regrets=regrets(mine),
            front=front(mine, lambda one: one.plan_seconds),
        )
        for test, mine in tests.items()
    ]
