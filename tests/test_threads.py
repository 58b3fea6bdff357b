"""How many threads a run takes."""

import time

import pytest
import torch
from torch import Tensor

from jepa_wm.bundle.reader import find_bundle
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.errors import ConfigError
from jepa_wm.experiments import threads as measured
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model


def waits(seconds):
    """Make work that takes so long with each number of threads, and counts its calls."""
    calls = []

    def work() -> Tensor:
        calls.append(torch.get_num_threads())
        time.sleep(seconds[calls[-1]])
        return torch.zeros(())

    return work, calls


@pytest.mark.parametrize(
    ("seconds", "best", "tried"),
    [
        ({1: 0.04, 2: 0.02, 4: 0.005, 8: 0.02}, 4, {1, 2, 4, 8}),
        ({1: 0.02, 2: 0.04, 4: 0.0, 8: 0.02}, 1, {8, 1, 2}),  # stops where two are no faster
        ({1: 0.02, 2: 0.0199, 4: 0.0, 8: 0.02}, 1, {8, 1, 2}),  # a hair is not worth a core
    ],
)
def test_the_fewest_threads_that_are_fastest(threads, seconds, best, tried):
    threads(8)
    work, calls = waits(seconds)
    assert measured.fastest(work, 8) == best
    assert set(calls) == tried


def test_a_large_model_takes_every_core_unmeasured(threads):
    threads(4)
    work, calls = waits({4: measured.LONG * 1.05})
    assert measured.fastest(work, 4) == 4
    assert calls == [4]


@pytest.mark.parametrize("wanted", [0, 1.5, True, "many", -2])
def test_what_is_no_number_of_threads_is_refused(wanted):
    with pytest.raises(ConfigError, match=f"threads={wanted!r} must be auto, a whole number"):
        measured.check_threads(wanted)


def test_a_count_and_null_need_no_measurement(threads):
    def look() -> RolloutCost:
        raise AssertionError("measured")

    measured.settle_threads(2, None, look)
    assert torch.get_num_threads() == 2
    assert measured.told_threads(2, torch.device("cpu")) == "2 threads"
    measured.settle_threads(None, None, look)  # after another job of a multirun took two
    assert torch.get_num_threads() == measured.CORES


@pytest.mark.parametrize("planner", ["cem", "gradient"])
def test_what_is_measured_is_a_round_of_the_planner(planner):
    model = load_world_model(find_bundle("lewm.gguf"), torch.device("cpu"), torch.float32)
    search, D = preset("planner", planner), model.predictor.config.embed_dim
    context = Context(torch.randn(1, 1, D), torch.zeros(1, 0, model.action_dim))
    cost = RolloutCost(model, preset("objective", "goal_l2"), torch.randn(1, D), context, None, 1)
    found = measured.scoring(search, cost, model.action_dim)()
    assert cost.evaluations == search.num_samples
    follows = planner == "gradient"
    assert list(found.shape) == [1, search.num_samples, *[measured.STEPS, 10] * follows]
    assert bool(found.abs().sum() > 0)


def test_only_what_was_measured_is_told_so(threads, monkeypatch):
    threads(2)
    monkeypatch.setattr(measured, "CORES", 2)
    assert measured.told_threads("auto", torch.device("cpu")) == "2 threads (auto: measured)"
    assert measured.told_threads("auto", torch.device("cuda")) == "2 threads"


def test_a_cost_without_a_gradient_is_left_to_the_planner_to_refuse():
    search = preset("planner", "gradient")

    def flat(actions: Tensor) -> Tensor:
        return actions.detach().square().sum((2, 3))

    found = measured.scoring(search, flat, 10)()
    assert list(found.shape) == [1, search.num_samples]
    bounds = torch.full((10,), -1.0), torch.full((10,), 1.0)
    start = search.start(1, 10, torch.device("cpu"))
    with pytest.raises(ConfigError, match="this cost has none"):
        search.plan(flat, start, bounds, [torch.Generator()])


@pytest.mark.parametrize("name", ["lewm.gguf", "vjepa2-ac.gguf"])
def test_a_bundled_models_bits_are_the_same_with_any_number(threads, name):
    model = load_world_model(find_bundle(name), torch.device("cpu"), torch.float32)
    frames = torch.randint(0, 256, (1, 1, 224, 224, 3), dtype=torch.uint8)
    plans = 0.1 * torch.randn(1, 100, 2, model.action_dim)
    pose = torch.zeros(1, 1, 7)  # a LeWM does not look at it
    found = []
    for count in (1, 2, 3):
        threads(count)
        z = model.encode(model.preprocess(frames))
        context = Context(z, torch.zeros(1, 0, model.action_dim), pose)
        found.append(model.rollout(context, plans))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
