"""Rates: golden Wilson intervals, the exact McNemar test, intervals of paired differences, Holm."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepa_wm.control.rates import Paired, holm, mcnemar_p_value, pair_outcomes, wilson_interval


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (48, 50, 86.5, 98.9),
        (44, 50, 76.2, 94.4),
        (37, 50, 60.4, 84.1),
        (131, 150, 81.1, 91.7),
        (450, 500, 87.1, 92.3),
    ],
)
def test_wilson_golden(successes, count, low, high):
    found = wilson_interval(successes, count)
    assert [round(100 * end, 1) for end in found] == [low, high]


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_inside_the_unit_interval(numbers):
    successes, count = numbers
    low, high = wilson_interval(successes, count)
    assert 0 <= low <= successes / count <= high <= 1
    mirrored = wilson_interval(count - successes, count)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_wilson_ends_and_faults():
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)
    for bad in ((-1, 5), (6, 5)):
        with pytest.raises(ValueError, match="successes"):
            wilson_interval(*bad)


def test_mcnemar_against_enumeration():
    for b in range(9):
        for c in range(9):
            n = b + c
            # All splits of n coin tosses that are at most as likely as the one seen.
            seen = math.comb(n, b)
            extreme = sum(math.comb(n, k) for k in range(n + 1) if math.comb(n, k) <= seen)
            assert mcnemar_p_value(b, c) == pytest.approx(float(Fraction(extreme, 2**n)))


def test_mcnemar_known_values_and_large_counts():
    assert mcnemar_p_value(0, 0) == 1.0
    assert mcnemar_p_value(1, 9) == pytest.approx(22 / 1024)
    assert mcnemar_p_value(0, 5) == pytest.approx(1 / 16)
    assert 0 < mcnemar_p_value(900, 1300) < 1e-15  # beyond what floats of 2**n hold
    with pytest.raises(ValueError, match="negative"):
        mcnemar_p_value(-1, 2)


def paired(both, first_only, second_only, neither):
    return Paired(
        both=both, first_only=first_only, second_only=second_only, neither=neither,
        p_value=mcnemar_p_value(first_only, second_only),
    )  # fmt: skip


def test_outcomes_are_counted():
    found = pair_outcomes([(True, False)] * 3 + [(False, True)] + [(True, True)] * 2)
    assert found == paired(2, 3, 1, 0) and found.difference == pytest.approx(2 / 6)


def test_the_interval_of_a_paired_difference_by_hand():
    """Rates 11/20 and 8/20; the outcomes' correlation is (7*8 - 4*1 - 20/2) / sqrt(11*9*8*12)."""
    (l1, u1), (l2, u2) = wilson_interval(11, 20), wilson_interval(8, 20)
    phi = 42 / math.sqrt(11 * 9 * 8 * 12)
    x, y = 0.55 - l1, u2 - 0.4
    v, w = u1 - 0.55, 0.4 - l2
    low, high = paired(7, 4, 1, 8).interval
    assert low == pytest.approx(0.15 - math.sqrt(x * x - 2 * phi * x * y + y * y), abs=1e-12)
    assert high == pytest.approx(0.15 + math.sqrt(v * v - 2 * phi * v * w + w * w), abs=1e-12)
    assert low < 0 < 0.15 < high


counts = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


@given(counts)
def test_the_interval_holds_the_difference_and_turns_with_the_pair(numbers):
    both, b, c, neither = numbers
    low, high = paired(both, b, c, neither).interval
    assert -1 - 1e-9 <= low <= (b - c) / sum(numbers) <= high <= 1 + 1e-9
    assert paired(both, c, b, neither).interval == pytest.approx((-high, -low), abs=1e-12)


@pytest.mark.parametrize("chances", [(0.7, 0.15, 0.1, 0.05), (0.2, 0.5, 0.1, 0.2)])
def test_the_interval_covers_the_truth(chances):
    """Exactly: every outcome of 16 episodes, weighted by its probability."""
    n, truth, covered = 16, chances[1] - chances[2], 0.0
    for both, b, c in product(range(n + 1), repeat=3):
        if both + b + c > n:
            continue
        split = (both, b, c, n - both - b - c)
        weight = math.factorial(n) / math.prod(map(math.factorial, split))
        weight *= math.prod(p**k for p, k in zip(chances, split, strict=True))
        low, high = paired(*split).interval
        covered += weight * (low <= truth <= high)
    assert 0.93 < covered < 0.99


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_one_and_all(p_values):
    found = np.array(holm(p_values))
    assert np.all(found >= p_values) and np.all(found <= np.minimum(1, len(p_values)) + 1e-12)
    assert found.min() == min(1, len(p_values) * min(p_values))
