"""Rates of success: their intervals, two rates on the same episodes, many such comparisons.

Pure Python; input is counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.96
"""Standard normal quantile of a two-sided 95 % interval."""


def wilson_interval(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate, (low, high) within [0, 1].

    With p = successes / n: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).

    Args:
        successes: How many succeeded, 0..count.
        count: How many were tried, n >= 0; with none tried anything is possible: (0, 1).
        z: Normal quantile; 1.96 is 95 %, two-sided.

    Raises:
        ValueError: ``successes`` is outside 0..count, or z is negative.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA
    1927.
    """
    if not 0 <= successes <= count:
        raise ValueError(f"successes={successes} must lie in 0..{count}")
    if z < 0:
        raise ValueError(f"z={z} must not be negative")
    if count == 0:
        return 0.0, 1.0
    p, share = successes / count, z * z / count
    centre = p + share / 2
    half = z * math.sqrt((p * (1 - p) + share / 4) / count)
    # At 0 and n the exact bound is 0 and 1; rounding must not move it.
    low = 0.0 if successes == 0 else (centre - half) / (1 + share)
    high = 1.0 if successes == count else (centre + half) / (1 + share)
    return low, high


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two agents on the same episodes.

    Attributes:
        both: Episodes both solved.
        first_only: Episodes only the first solved.
        second_only: Episodes only the second solved.
        neither: Episodes neither solved.
        p_value: Exact two-sided McNemar probability of so uneven a split of the disagreements if
            the agents were equal.
    """

    both: int
    first_only: int
    second_only: int
    neither: int
    p_value: float

    @property
    def count(self) -> int:
        """Episodes compared."""
        return self.both + self.first_only + self.second_only + self.neither

    @property
    def difference(self) -> float:
        """Success rate of the first minus that of the second, in [-1, 1]."""
        return (self.first_only - self.second_only) / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference: Wilson's of both rates, squared and added.

        Source: Newcombe, "Improved confidence intervals for the difference between binomial
        proportions based on paired data", Statistics in Medicine 1998, method 10.
        """
        n, shift = self.count, self.difference
        first, second = self.both + self.first_only, self.both + self.second_only
        low, high = wilson_interval(first, n)
        low2, high2 = wilson_interval(second, n)
        p, p2, phi = first / n, second / n, self._correlation

        def length(x: float, y: float) -> float:
            return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

        return shift - length(p - low, high2 - p2), shift + length(high - p, p2 - low2)

    @property
    def _correlation(self) -> float:
        """Correlation of the two outcomes, corrected for continuity as the interval wants it."""
        rows = (self.both + self.first_only) * (self.second_only + self.neither)
        columns = (self.both + self.second_only) * (self.first_only + self.neither)
        if not rows * columns:
            return 0.0
        cross: float = self.both * self.neither - self.first_only * self.second_only
        if cross > 0:
            cross = max(cross - self.count / 2, 0)
        return cross / math.sqrt(rows * columns)


def mcnemar_p_value(first_only: int, second_only: int) -> float:
    """Return the exact two-sided McNemar p: a sign test on the disagreements.

    p = min(1, 2 sum_{k <= min(b, c)} C(b+c, k) / 2^(b+c)), exact for any count.

    Raises:
        ValueError: a count is negative.

    Source: McNemar, Psychometrika 1947; exact form as in any text on paired proportions.
    """
    if min(first_only, second_only) < 0:
        raise ValueError(f"counts ({first_only}, {second_only}) must not be negative")
    n = first_only + second_only
    tail = sum(math.comb(n, k) for k in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**n)


def pair_outcomes(outcomes: Sequence[tuple[bool, bool]]) -> Paired:
    """Compare two agents.

    Args:
        outcomes: Success of the first and of the second, one pair an episode.
    """
    b, c = outcomes.count((True, False)), outcomes.count((False, True))
    return Paired(
        both=outcomes.count((True, True)),
        first_only=b,
        second_only=c,
        neither=outcomes.count((False, False)),
        p_value=mcnemar_p_value(b, c),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for how many there are: below 0.05, any false alarm has < 5 %.

    The k-th smallest of m is multiplied by m - k + 1; a larger one is never adjusted to less.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 1979.
    """
    m, most = len(p_values), 0.0
    found = [1.0] * m
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        most = max(most, min(1.0, (m - rank) * p_values[index]))
        found[index] = most
    return found
