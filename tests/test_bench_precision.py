"""How alike models price the same candidates."""

import functools

import numpy as np
import pytest
import torch

from jepa_wm.bench import split_words
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.experiments.bench_cells import settle
from jepa_wm.experiments.precision import Priced, Probe, compare, pairs, price, row_of, spearman

from bundle.tiny import TINY_LEWM, random_tensors  # isort: skip

torch.set_num_threads(1)
META = TINY_LEWM | {
    "jepa_wm.action.block": 5,
    "jepa_wm.action.mean": [0.0, 0.0],
    "jepa_wm.action.std": [0.3, 0.3],
    "jepa.pred.action_dim": 10,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of other weights, and one whose actions mean something else."""
    folder = tmp_path_factory.mktemp("models")
    slow = {"jepa_wm.action.std": [0.1, 0.1]}
    return [
        str(write_bundle(folder / f"{name}.gguf", META | changes, random_tensors(META, seed)))
        for name, seed, changes in (("one", 0, {}), ("other", 1, {}), ("slow", 0, slow))
    ]


@functools.cache
def composed(planner="cem"):
    return settle(["episodes=3", f"planner={planner}"], split_words([])[0])


def options(model, dtype="float32", planner="cem", **changes):
    return composed(planner) | {"model": model, "dtype": dtype} | changes


@pytest.mark.parametrize(
    ("one", "other", "rho"),
    [
        ([1.0, 2, 3, 4], [1.0, 4, 9, 16], 1.0),
        ([1.0, 2, 3, 4], [4.0, 3, 2, 1], -1.0),
        ([1.0, 2, 3, 4, 5], [2.0, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1.0, 2, 2, 3], [1.0, 2, 3, 4], 3 / np.sqrt(10)),  # ties share a rank
    ],
)
def test_rank_correlation_against_a_hand_computation(one, other, rho):
    assert abs(spearman(np.array(one), np.array(other)) - rho) < 1e-12


def test_comparison_against_a_hand_computation():
    reference = np.array([[1.0, 2, 3, 4, 5], [5.0, 4, 3, 2, 1]])
    costs = np.array([[1.1, 2, 3, 4, 5], [5.0, 4, 1.5, 2, 3]])
    found = compare(costs, reference, elites=2)
    assert found["spearman"] == {"median": pytest.approx(0.8), "min": pytest.approx(0.6)}
    assert found["elite_overlap"] == {"mean": 0.75, "min": 0.5}
    assert found["max_relative"] == pytest.approx(2.0)  # 3 in place of 1


def test_candidates_are_the_same_for_every_dtype(models):
    exact, rough = (
        price(Probe(options(models[0], dtype), tasks=2, candidates=40))
        for dtype in ("float32", "bfloat16")
    )
    assert exact.costs.shape == (2, 40)
    assert len({*exact.costs.ravel().tolist()}) == 80
    assert 0 < np.abs(rough.costs / exact.costs - 1).max() < 0.1  # the same but for rounding
    again = price(Probe(options(models[0], seed=1), tasks=2, candidates=40))
    assert not np.allclose(again.costs, exact.costs)


def test_a_planners_own_elites_count(models):
    two = composed()["planner"] | {"num_elites": 2}
    (pair,) = pairs([options(models[0], "bfloat16") | {"planner": two}])
    reference, units = np.arange(6.0)[None] + 1, (5,)
    swapped = reference[:, [1, 0, 2, 3, 4, 5]]
    row = row_of(pair, Priced(swapped, units), Priced(reference, units))
    assert row["elite_overlap"]["min"] == 1.0  # the same two, in another order
    assert row["model"] == models[0] and row["dtype"] == "bfloat16" and row["env"] == "pusht"


def test_every_model_and_dtype_is_compared_with_the_first_in_float32(models):
    cells = [
        options(model, dtype, planner)
        for planner in ("cem", "mppi")
        for model in models[:2]
        for dtype in ("float32", "bfloat16")
    ]
    found = pairs(cells)
    told = [(pair.names["model"], pair.names["dtype"]) for pair in found]
    one, other = models[:2]
    assert told == [(one, "bfloat16"), (other, "float32"), (other, "bfloat16")]
    for pair in found:
        reference = pair.reference.options
        assert (reference["model"], reference["dtype"]) == (one, "float32")
        assert pair.probe.options["planner"] == reference["planner"] == cells[0]["planner"]
    assert pairs(cells[:1]) == []
    assert pairs([options("simulator")]) == []


def test_other_actions_cannot_be_compared(models):
    one, slow = (
        price(Probe(options(model), tasks=1, candidates=5)) for model in (models[0], models[2])
    )
    (pair,) = pairs([options(model) for model in (models[0], models[2])])
    assert row_of(pair, slow, one) is None and row_of(pair, one, one) is not None
