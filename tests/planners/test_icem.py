"""iCEM: its noise, its populations, the elites it keeps, what it starts from and returns."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Plan, Scored
from jepa_wm.control.memory import select_plan
from jepa_wm.experiments.setup import fitted
from jepa_wm.launch import preset
from jepa_wm.planners.noise import coloured

CPU = torch.device("cpu")
WIDE = (torch.full((4,), -50.0), torch.full((4,), 50.0))
BOX = (torch.full((4,), -1.0), torch.full((4,), 1.0))


def icem(**changes):
    return replace(preset("planner", "icem"), **{"noise_block": 1, "init_std": 1.0, **changes})


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def quadratic(target):
    return lambda actions: (actions - target).square().sum((2, 3))


def solve(planner, cost=None, start=None, bounds=WIDE, seeds=(0,)):
    """Plan; return the plan and the candidates of every call of the cost."""
    calls, cost = [], cost or quadratic(0.7)

    def seen(actions):
        calls.append(actions)
        return cost(actions)

    start = planner.start(len(seeds), 4, CPU) if start is None else start
    return planner.plan(seen, start, bounds, generators(seeds)), calls


# --- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 25])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_every_step_of_the_noise_has_unit_variance_and_the_correlation_of_its_spectrum(n, beta):
    white = torch.randn(100_000, n, generator=torch.Generator().manual_seed(n))
    noise = coloured(white, beta)
    assert (noise.std(0) - 1).abs().max() < 0.01, f"{noise.std(0)}"
    far = (noise.abs() > 3).float().mean()  # of a normal: 0.0027
    assert abs(far - 0.0027) < 0.001, f"{far:.4f}"
    waves = np.minimum(np.arange(n), n - np.arange(n)) / n  # all n frequencies
    power = np.maximum(waves, 1 / n) ** -beta
    lags = np.arange(n)
    expected = np.cos(2 * np.pi * np.outer(lags, np.arange(n)) / n) @ power / power.sum()
    found = (noise[:, :1] * noise).mean(0)
    assert np.abs(found.numpy() - expected).max() < 0.02


@pytest.mark.parametrize("n", [2, 5, 10, 25, 50])
def test_the_noise_is_the_white_one_with_the_amplitudes_of_its_spectrum(n):
    white = torch.randn(40, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    waves = torch.arange(n // 2 + 1, dtype=torch.float64).clamp_min(1)
    for beta in (0.5, 2.0, 3.0):
        filtered = torch.fft.irfft(torch.fft.rfft(white) * waves ** (-beta / 2), n=n)
        every = torch.minimum(torch.arange(n), n - torch.arange(n)).clamp_min(1).double()
        wanted = filtered / (every**-beta).mean().sqrt()
        torch.testing.assert_close(coloured(white, beta), wanted, atol=1e-13, rtol=0)
        close = coloured(white.float(), beta)
        torch.testing.assert_close(close, wanted.float(), atol=3e-6, rtol=0)


@pytest.mark.parametrize("n", [5, 10, 25])
def test_the_bits_of_noise_depend_on_no_threads_and_no_neighbours(n, threads):
    """Long enough that every operation is split over two threads, at a place of no importance."""
    white = torch.randn(7, 1501, n, 2, generator=torch.Generator().manual_seed(0)).transpose(2, 3)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(coloured(white, 2.0))
    assert all(torch.equal(found[0], other) for other in found[1:])
    for row in (0, 6):
        assert torch.equal(coloured(white[row : row + 1], 2.0)[0], found[0][row])
    assert torch.equal(coloured(white[:, 700:701], 2.0), found[0][:, 700:701])


@pytest.mark.gpu
def test_cuda_colours_noise_alike_without_a_sync():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    white = torch.randn(3, 300, 2, 25, generator=torch.Generator().manual_seed(0))
    there = white.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, alone = coloured(there, 2.0), coloured(there[1:2], 2.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found[1:2], alone)
    torch.testing.assert_close(found.cpu(), coloured(white, 2.0), atol=1e-6, rtol=0)


def test_beta_zero_leaves_the_noise_as_it_is():
    white = torch.randn(7, 5)
    assert torch.equal(coloured(white, 0.0), white)


def test_candidates_are_smooth_over_the_planner_steps_or_over_the_time_within():
    """A solver action of four numbers is one step, or two steps of two."""
    for block, near in ((1, 0), (2, 1)):
        wide = icem(num_samples=20_000, iterations=1, noise_block=block, include_mean=False)
        _, (samples, _) = solve(wide)
        steps = samples[0].reshape(20_000, 5 * block, 4 // block)
        lag = (steps[:, 1:] * steps[:, :-1]).mean((0, 2))
        alone = coloured(torch.eye(5 * block), wide.noise_beta)  # its columns filter
        expected = (alone[:, 1:] * alone[:, :-1]).sum(0)
        torch.testing.assert_close(lag, expected, atol=0.03, rtol=0)
        within = (samples[0, :, :, 0] * samples[0, :, :, 2]).mean()
        assert (within > 0.5) == bool(near), f"block {block}: {within:.2f}"


def test_a_block_that_does_not_divide_the_action_is_refused():
    with pytest.raises(ValueError, match="noise_block=3 does not divide the solver action, 4"):
        icem(noise_block=3).start(1, 4, CPU)


def test_the_block_is_the_action_block_of_the_model_unless_given():
    codec = ActionCodec(block=5, mean=[0.0, 0.0], std=[1, 1], low=[-9, -9], high=[9, 9])
    left_open = preset("planner", "icem")
    assert left_open.noise_block is None
    assert fitted(left_open, codec) == replace(left_open, noise_block=5)
    given = replace(left_open, noise_block=1)
    assert fitted(given, codec) == given
    assert fitted(preset("planner", "cem"), codec) == preset("planner", "cem")


# --- populations and elites ----------------------------------------------------------------------


def test_populations_decay_to_twice_the_elites():
    _, calls = solve(icem(num_samples=100, num_elites=20, iterations=6, decay=1.25))
    assert [call.shape[1] for call in calls] == [100, 80, 64, 51, 40, 40, 1]
    _, calls = solve(icem(num_samples=60, num_elites=20, iterations=3, decay=1.0))
    assert [call.shape[1] for call in calls] == [60, 60, 60, 1]


def test_elites_stay_within_a_solve_at_the_cost_they_have():
    """Each call is worse than all before, so the elites of the first must rule to the end."""
    calls = []

    def cost(actions):
        calls.append(1)
        return quadratic(0.7)(actions) + 1000.0 * len(calls)

    planner = icem(num_samples=60, num_elites=10, iterations=4, momentum=0.0)
    plan, seen = solve(planner, cost)
    best = quadratic(0.7)(seen[0])[0].topk(3, largest=False).indices
    assert torch.equal(plan.candidates[0], seen[0][0, best])
    assert torch.equal(plan.actions[0], seen[0][0, best[0]])
    again = [(one == plan.candidates[0, 0]).all((2, 3)).any() for one in seen[1:]]
    assert not any(again), "they are not evaluated again"
    last = seen[3][0][quadratic(0.7)(seen[3])[0].topk(7, largest=False).indices]
    mean = torch.cat([plan.candidates[0], last]).mean(0)
    torch.testing.assert_close(plan.mean.actions[0], mean)
    forgets, _ = solve(replace(planner, keep=0.0), cost)
    assert forgets.candidates is None


def test_kept_elites_do_not_hide_a_round_that_failed():
    calls = []

    def cost(actions):
        calls.append(1)
        return quadratic(0.7)(actions) * (torch.nan if len(calls) == 2 else 1.0)

    plan, _ = solve(icem(), cost)
    assert plan.cost.isinf()
    assert plan.trace.best[1].isinf() and plan.trace.best[2].isfinite()
    cold = icem().shift(plan, 1)
    assert (cold.actions == 0).all() and cold.candidates.isnan().all()


def test_elites_are_tried_again_shifted_and_their_last_blocks_are_drawn():
    planner = icem(num_samples=60, num_elites=10)
    plan, _ = solve(planner)
    following = planner.shift(plan, 2)
    assert following.candidates.shape == (1, 3, 5, 4)
    _, (first, *_) = solve(planner, start=following, seeds=(1,))
    assert torch.equal(first[0, :3, :3], plan.candidates[0, :, 2:])
    _, (drawn, *_) = solve(planner, start=replace(following, candidates=None), seeds=(1,))
    assert torch.equal(first[0, :3, 3:], drawn[0, :3, 3:]), "as drawn where there is nothing"
    assert torch.equal(first[0, 3:], drawn[0, 3:])
    assert first.shape[1] == planner.num_samples, "they take the place of draws"


def test_a_horizon_that_shrinks_needs_no_draw():
    planner = icem(num_samples=60, num_elites=10)
    plan, _ = solve(planner)
    for left in (4, 1):
        start = planner.shift(plan, 1).cut(left)
        following, (first, *_) = solve(planner, start=start)
        assert torch.equal(first[0, :3], plan.candidates[0, :, 1 : left + 1])
        assert following.actions.shape == (1, left, 4)
    last = planner.shift(following, 1)  # everything was executed
    assert last.candidates.isnan().all() and (last.actions == 0).all()


def test_the_mean_is_a_candidate_of_the_last_round_only():
    seen = []

    class Watched(type(icem())):
        def update(self, plan, samples, costs):
            seen.append((samples[0, 0] == plan.actions[0]).all().item())
            return super().update(plan, samples, costs)

    for wanted in (True, False):
        settings = vars(icem(iterations=3, include_mean=wanted))
        solve(Watched(**settings))
    assert seen == [False, False, True, False, False, False]


# --- from solve to solve -------------------------------------------------------------------------


def test_the_best_is_executed_and_the_next_solve_starts_from_the_mean():
    planner = icem(iterations=2)
    plan, _ = solve(planner)
    assert planner.returns == "best"
    assert torch.equal(plan.actions, plan.best.actions)
    assert not torch.equal(plan.mean.actions, plan.best.actions)
    assert torch.equal(planner.shift(plan, 1).actions[:, :4], plan.mean.actions[:, 1:])


def test_rows_that_are_left_go_on_as_they_would_alone():
    planner = icem(iterations=2)
    plan, _ = solve(planner, seeds=(0, 1, 2))
    alone, _ = solve(planner, seeds=(2,))
    left = planner.shift(select_plan(plan, torch.tensor([2])), 1)
    expected = planner.shift(alone, 1)
    assert torch.equal(left.actions, expected.actions)
    assert torch.equal(left.candidates.nan_to_num(9.0), expected.candidates.nan_to_num(9.0))


def test_a_shifted_mean_is_padded_as_told():
    numbers = torch.arange(1.0, 6.0)[None, :, None].expand(1, 5, 4)
    given = Plan(numbers, torch.ones(1, 5, 4), torch.zeros(1), mean=Scored(numbers, torch.zeros(1)))
    for pad, expected in (("zero", [3, 4, 5, 0, 0]), ("last", [3, 4, 5, 5, 5])):
        assert icem(pad=pad).shift(given, 2).actions[0, :, 0].tolist() == expected


def test_momentum_keeps_a_tenth_of_the_old_mean():
    planner = icem(iterations=1, momentum=0.1, include_mean=False)
    start = planner.start(1, 4, CPU, np.ones((1, 5, 4)))
    plan, (samples, _) = solve(planner, start=start)
    best = quadratic(0.7)(samples)[0].topk(planner.num_elites, largest=False).indices
    torch.testing.assert_close(plan.mean.actions[0], 0.1 + 0.9 * samples[0, best].mean(0))


def test_candidates_are_cut_where_the_environment_ends():
    """Bounds of +-1 at a standard deviation of 0.2 are +-5 for the solver: 3 is within reach."""
    codec = ActionCodec(block=2, mean=[0.0, 0.0], std=[0.2, 0.2], low=[-1, -1], high=[1, 1])
    planner = icem(num_samples=300, num_elites=20, iterations=30, decay=1.0, init_std=2.0)
    plan, calls = solve(planner, quadratic(3.0), bounds=codec.bounds())
    assert (plan.actions - 3.0).abs().max() < 0.2
    assert torch.cat([call.flatten() for call in calls]).abs().max() == 5.0


@pytest.mark.parametrize("seed", range(3))
def test_with_the_same_evaluations_and_bounds_it_comes_nearer_than_cem(seed):
    """A path to follow within a box that both clip to."""
    phase = torch.rand(4, generator=torch.Generator().manual_seed(seed)) * 6
    goal = 0.9 * torch.sin(torch.arange(5.0)[:, None] * 0.7 + phase)

    def cost(actions):
        return (actions.cumsum(2) - goal.cumsum(0)).square().sum((2, 3))

    planner = icem(num_samples=60, decay=1.0)
    same = {"num_samples": 60, "iterations": planner.iterations, "num_elites": planner.num_elites}
    other, _ = solve(replace(preset("planner", "cem"), **same), cost, bounds=BOX, seeds=(seed,))
    plan, _ = solve(planner, cost, bounds=BOX, seeds=(seed,))
    assert plan.cost < other.cost, f"{plan.cost.item():.3f} {other.cost.item():.3f}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_beta": -1.0, "decay": 0.9}, "noise_beta=-1.0 must be .*; decay=0.9 must be"),
        ({"keep": 1.5}, "keep=1.5 must be <= 1"),
        ({"pad": "hold"}, "pad='hold' must be one of zero, last"),
        ({"noise_block": 0}, "noise_block=0 must be a whole number >= 1"),
        ({"num_samples": 19, "num_elites": 10}, "num_samples=19 must be >= 2 x num_elites=10"),
    ],
)
def test_impossible_settings_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        icem(**changes)
