"""Linear probes: what they read, how they choose and how honestly they are scored."""

import numpy as np
import pytest

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.readings import Reading, _left_out, fit_probe, make_readings

PLACE = Reading(label="place", at=[0, 1], unit="cm", scale=100.0)
ANGLE = Reading(label="angle", at=[2], unit="rad", turns=2)


def states(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [rng.uniform(-1, 1, (count, 2)), rng.uniform(-3, 3, count), rng.normal(size=count)]
    )


def latents(seen, dim=40, noise=0.0):
    """Linear in places and in cosine and sine of twice the angle."""
    rng = np.random.default_rng(9)
    facts = np.concatenate([PLACE.targets(seen), ANGLE.targets(seen)], -1)
    return facts @ rng.normal(size=(4, dim)) + 3 + noise * rng.normal(size=(len(seen), dim))


def test_what_is_linear_is_read_exactly():
    seen = states(64)
    probe = fit_probe(latents(seen), seen, np.arange(64) // 4, (PLACE, ANGLE))
    fresh = states(5, seed=1)
    found = probe.read(latents(fresh))
    assert min(probe.r2.values()) > 1 - 1e-6
    assert PLACE.error(found, fresh).max() < 0.01 and ANGLE.error(found, fresh).max() < 1e-3
    assert set(np.round(found[:, 3], 6)) == set(np.round(probe.usual[3:], 6))  # not read


def test_errors_are_in_units_and_angles_go_the_short_way():
    true = np.array([0.1, 0.2, 0.0, 0.0])
    read = np.array([0.4, 0.6, np.pi - 0.1, 0.0])
    assert PLACE.error(read, true) == pytest.approx(50.0)  # cm
    assert ANGLE.error(read, true) == pytest.approx(0.1)  # a half turn looks the same
    whole = Reading(label="angle", at=[2], unit="deg", turns=1, scale=180 / np.pi)
    assert whole.error(read, true) == pytest.approx(180 - 0.1 * 180 / np.pi)


def test_noise_scores_about_nothing():
    """Few frames and many numbers: a fit without a shrink would score far below zero."""
    rng = np.random.default_rng(0)
    probe = fit_probe(rng.normal(size=(96, 60)), states(96), np.arange(96) // 4, (PLACE,))
    assert -0.2 < probe.r2["place"] < 0.2


def test_scores_are_of_episodes_that_were_not_fitted():
    """An episode whose latents say something else spoils the score only where it is held out."""
    seen = states(64)
    z, episodes = latents(seen), np.arange(64) // 4
    spoilt = z.copy()
    spoilt[episodes % 4 == 3] += np.random.default_rng(0).normal(scale=5, size=(16, z.shape[1]))
    fitted = fit_probe(spoilt, seen, episodes, (PLACE,))
    assert fitted.r2["place"] < 0.9
    np.testing.assert_allclose(
        fitted.read(z), fit_probe(z, seen, episodes, (PLACE,)).read(z), atol=1e-6
    )


def test_leaving_an_episode_out_is_refitting_without_it():
    rng = np.random.default_rng(0)
    z, y, shrink = rng.normal(size=(24, 40)), rng.normal(size=(24, 2)), 5.0
    rows, centred = z - z.mean(0), y - y.mean(0)
    size, vectors = np.linalg.eigh(rows @ rows.T)
    kept = size / (size + shrink)
    residual = centred - vectors @ (kept[:, None] * (vectors.T @ centred))
    out = np.arange(24) // 4 == 2
    mean, offset = z[~out].mean(0), y[~out].mean(0)
    others = z[~out] - mean
    weights = np.linalg.solve(others @ others.T + shrink * np.eye(20), y[~out] - offset)
    missed = (z[out] - mean) @ others.T @ weights + offset - y[out]
    found = _left_out(vectors[out], kept, residual[out], 24)
    np.testing.assert_allclose(found, np.square(missed).sum(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([{"label": "a", "at": [4], "unit": "m"}], "a at numbers outside the state, which has 4"),
        ([{"label": "a", "at": [-1], "unit": "m"}], "outside the state"),
        ([{"label": "a", "at": [], "unit": "m"}], r"reads at=\[\]"),
        ([{"label": "a", "at": [0, 1], "unit": "rad", "turns": 1}], "exactly one"),
        ([{"label": "a", "at": [0]}], "unit"),
        ([], "nothing"),
    ],
)
def test_readings_that_do_not_fit_are_refused(nodes, words):
    with pytest.raises(ConfigError, match=words):
        make_readings(nodes, 4)


def test_one_episode_is_not_enough():
    seen = states(8)
    with pytest.raises(ConfigError, match="two episodes"):
        fit_probe(latents(seen), seen, np.zeros(8, int), (PLACE,))
