"""Statistics of episodes: golden Wilson intervals, the exact McNemar test, summaries."""

import json
import math

import numpy as np
import pytest

from jepa_wm.control.episode import Episode
from jepa_wm.control.rates import wilson_interval
from jepa_wm.control.statistics import (
    Measure,
    Spread,
    compare,
    success_step,
    summarise,
)
from jepa_wm.errors import ConfigError

BLOCK = Measure(key="block_err", label="block distance", unit="px", threshold=20.0)
ANGLE = Measure(key="angle_err", label="block angle", unit="deg", scale=180 / np.pi)


def make_episode(id, *, success=False, presolved=False, distances=(50.0, 40.0, 30.0), **fields):
    distances = np.array(distances, dtype=np.float64)
    steps = len(distances) - 1
    metrics = {
        "block_err": distances,
        "angle_err": np.full(steps + 1, np.pi / 4),
        "is_success": distances < 20,
    }
    record = {
        "id": id,
        "seed": 7 + id,
        "success": success,
        "presolved": presolved,
        "actions": np.zeros((steps, 2), np.float32),
        "rewards": np.zeros(steps),
        "metrics": metrics,
        "config": {"success": "is_success", "hold": 1, "budget": 50},
    }
    return Episode(**(record | fields))


def test_compare_pairs_by_id_not_by_place():
    first = [make_episode(i, success=s) for i, s in enumerate([True, True, False, False, True])]
    second = [make_episode(i, success=s) for i, s in enumerate([True, False, False, True, False])]
    paired = compare(first, second[::-1])
    assert (paired.both, paired.first_only, paired.second_only, paired.neither) == (1, 2, 1, 1)
    assert paired.count == 5
    assert paired.difference == pytest.approx(0.2)
    assert paired.p_value == 1.0


def test_compare_leaves_presolved_out():
    first = [make_episode(0, success=True), make_episode(1, presolved=True)]
    second = [make_episode(0), make_episode(1, presolved=True)]
    assert compare(first, second).count == 1
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(first[1:], second[1:])


def test_compare_refuses_what_is_not_paired():
    episodes = [make_episode(0), make_episode(1)]
    with pytest.raises(ValueError, match=r"\[1\] are only on one side"):
        compare(episodes, episodes[:1])
    with pytest.raises(ValueError, match="repeat"):
        compare([episodes[0]] * 2, episodes)
    with pytest.raises(ValueError, match=r"\[0\].*seed"):
        compare(episodes[:1], [make_episode(0, seed=99)])


def test_measure_scales_and_names_what_there_is():
    episode = make_episode(3)
    np.testing.assert_allclose(ANGLE.of(episode), 45.0)
    with pytest.raises(ConfigError, match=r"'coverage'.*episode 3.*angle_err.*block_err"):
        Measure(key="coverage", label="coverage", unit="1").of(episode)


def test_success_step_follows_the_rules_of_the_episode():
    path = [50.0, 10.0, 50.0, 10.0, 10.0, 50.0]
    assert success_step(make_episode(0, success=True, distances=path)) == 1
    hold = {"success": "is_success", "hold": 2}
    assert success_step(make_episode(0, success=True, distances=path, config=hold)) == 4
    assert success_step(make_episode(0, success=True, distances=path, config={})) == 5
    assert success_step(make_episode(0, success=False, distances=path)) is None
    assert success_step(make_episode(0, presolved=True, distances=[1.0])) == 0


def test_summary_counts_only_what_ran():
    episodes = [
        make_episode(0, success=True, distances=[50.0, 15.0]),
        make_episode(1, success=True, distances=[50.0, 40.0, 40.0, 10.0]),
        make_episode(2, distances=[60.0, 60.0, 60.0]),
        make_episode(3, presolved=True, distances=[0.0]),
    ]
    summary = summarise(episodes, (BLOCK, ANGLE))
    assert (summary.count, summary.successes, summary.presolved) == (3, 2, 1)
    assert summary.rate == pytest.approx(2 / 3)
    assert (summary.low, summary.high) == wilson_interval(2, 3)
    assert summary.steps_to_success == 2.0
    assert summary.final["block distance"].median == 15.0
    assert summary.final["block distance"].p90 == pytest.approx(51.0)
    assert summary.final["block angle"].median == pytest.approx(45.0)


def test_summary_of_times_tells_a_solve_from_its_share():
    seconds, rows = np.array([4.0, 2.0, 2.0]), np.array([4, 2, 1])
    episode = make_episode(0, seconds=seconds, plans={"rows": rows})
    summary = summarise([episode])
    assert summary.decision_seconds == Spread(median=2.0, p90=pytest.approx(3.6))
    assert summary.share_seconds.median == pytest.approx(1.0)
    assert summary.batch == 2.0


def test_summary_of_nothing_is_honest_and_json():
    summary = summarise([make_episode(0, presolved=True)], (BLOCK,))
    assert (summary.count, summary.presolved) == (0, 1)
    assert math.isnan(summary.rate)
    assert (summary.low, summary.high) == (0.0, 1.0)
    record = json.loads(json.dumps(summary.record(), allow_nan=False))
    assert record["rate"] is None
    assert record["final"]["block distance"] == {"median": None, "p90": None}


def test_spread_leaves_nan_out():
    assert Spread.of([1.0, math.nan, 3.0]).median == 2.0
    assert math.isnan(Spread.of([]).p90)
