"""iCEM as an arm's planner: what it spends, what it keeps, and the limits it keeps to."""

from dataclasses import replace

import pytest
import torch

from jepa_wm.launch import preset
from jepa_wm.planners.constraints import FromStep

CPU = torch.device("cpu")
BOX = (-torch.ones(7), torch.ones(7))
WANTED = torch.tensor([0.06, -0.03, 0.02, 0.2, 0.2, 0.2, -0.5])  # rotations are out of reach


def solve(planner, start=None, seed=0):
    """Plan towards ``WANTED``; return the plan and the candidates of every call of the cost."""
    calls = []

    def cost(actions):
        calls.append(actions[0])
        return (actions - WANTED).square().sum((2, 3))

    start = planner.start(1, 7, CPU) if start is None else start
    return planner.plan(cost, start, BOX, [torch.Generator().manual_seed(seed)]), calls


def spent(planner):
    return sum(len(call) for call in solve(planner)[1])


def test_a_decision_takes_less_than_a_quarter_of_the_evaluations_of_cem_ac():
    assert spent(preset("planner", "cem_ac")) == 601
    assert spent(preset("planner", "icem_ac")) <= 601 / 4


def test_a_round_scores_what_it_draws_and_nothing_it_has_kept():
    planner = preset("planner", "icem_ac")
    assert planner.keep * planner.num_elites >= 1 and not planner.noise_beta
    plan, calls = solve(planner)
    assert [len(call) for call in calls] == [planner.num_samples] * planner.iterations + [1]
    drawn = torch.cat(calls[:-1]).flatten(1)
    assert len(drawn.unique(dim=0)) == len(drawn), "no candidate is scored twice"
    costs = (drawn - WANTED.repeat(2)).square().sum(1)
    best = drawn[costs.topk(plan.candidates.shape[1], largest=False).indices]
    assert torch.equal(plan.candidates[0].flatten(1), best), "the cheapest of all rounds stay"


def test_a_kept_elite_rules_the_rounds_after_it():
    """It is drawn once, in the first round, and better than all that follows."""
    planner = replace(preset("planner", "icem_ac"), momentum=0.0)
    cold = planner.start(1, 7, CPU)
    exact = torch.where(cold.std > 0, WANTED, 0)[:, None]  # [1,1,2,7]
    with_it, _ = solve(planner, replace(cold, candidates=exact))
    assert torch.equal(with_it.best.actions, exact[:, 0])
    assert torch.equal(with_it.candidates[:, 0], exact[:, 0])
    without, _ = solve(planner)
    assert with_it.cost < without.cost


@pytest.mark.parametrize("left", [2, 1])
def test_the_next_decision_tries_the_elites_a_step_later(left):
    planner = preset("planner", "icem_ac")
    plan, _ = solve(planner)
    start = planner.shift(plan, 1).cut(left)
    following, (first, *_) = solve(planner, start, seed=1)
    kept = plan.candidates.shape[1]
    assert torch.equal(first[:kept, 0], plan.candidates[0, :, 1])
    assert len(first) == planner.num_samples, "they take the place of draws"
    if left == 2:
        drawn = first[:kept, 1]
        assert (drawn[:, 3:6] == 0).all() and (drawn[:, :3].std(0) > 0).all()
    assert (following.actions[..., 3:6] == 0).all()


def test_limits_hold_for_what_is_tried_again():
    """A gripper told to close does so in the shifted elites too."""
    planner = preset("planner", "icem_ac")
    plan, _ = solve(planner)
    limits = dict(planner.constraints) | {"close_gripper": FromStep(step=1, values={6: 1.0})}
    closing = replace(planner, constraints=limits)
    _, calls = solve(closing, closing.shift(plan, 1), seed=1)
    candidates = torch.cat(calls[:-1])
    assert (candidates[:, 1, 6] == 1.0).all() and (candidates[:, 0, 6].abs() <= 0.75).all()
    assert (candidates[..., :3].abs() <= 0.075).all() and (candidates[..., 3:6] == 0).all()
