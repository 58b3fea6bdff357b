"""The energy landscape of toy dynamics: its minimum, its border, the rank of an action."""

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Context
from jepa_wm.control.landscape import ActionCost, survey
from jepa_wm.control.mpc import RolloutCost
from jepa_wm.control.objectives import GoalDistance

TRUE = np.array([0.09, 0.03, 0.0])


class Adds:
    """z' = z + a, in blocks of one environment action of three numbers."""

    action_dim = 3
    history = 1

    def rollout(self, context, actions):
        return context.z[:, None, -1:] + actions.cumsum(2)


def toy(repeat=1, std=1.0):
    """The cost of reaching z = repeat x TRUE from 0."""
    codec = ActionCodec(block=1, mean=[0] * 3, std=[std] * 3, low=[-1] * 3, high=[1] * 3)
    goal = torch.tensor(repeat * TRUE / std, dtype=torch.float32)[None]
    context = Context(torch.zeros(1, 1, 3), torch.zeros(1, 0, 3))

    def objective(z):
        return GoalDistance(z, norm="l1", reduce="mean", steps="last")

    return ActionCost(RolloutCost(Adds(), objective, goal, context, chunk=7), codec, repeat)


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("std", [1.0, 0.2])
def test_the_minimum_lies_in_the_cell_of_the_true_action(repeat, std):
    found = survey(toy(repeat, std), TRUE, [0, 1], 0.15, 21)
    cell = found.points[1] - found.points[0]
    assert (np.abs(found.minimum - TRUE[:2]) <= cell / 2 + 1e-9).all(), found.minimum
    assert found.on_border == ()
    assert found.costs.shape == (21, 21)
    assert found.rank(0.0) == 1 and found.rank(np.inf) == 21 * 21 + 1


def test_a_range_that_hides_the_minimum_has_it_on_the_border():
    found = survey(toy(), TRUE, [0, 1, 2], 0.075, 5)
    assert found.on_border == (0,), "0.09 is beyond 0.075; 0.03 is not"
    assert found.minimum[0] == 0.075
    assert found.costs.shape == (5, 5, 5)


def test_a_minimum_that_is_flat_to_the_border_is_not_on_it():
    """As where the environment cuts what is too much."""
    toy_cost = toy()

    def cut(actions):
        return toy_cost(-np.clip(actions, -0.03, 0.03))  # the grid meets the border first

    assert survey(cut, np.zeros(3), [0, 1], 0.15, 11).on_border == ()


def test_other_dimensions_hold_the_base():
    base = np.array([0.0, 0.0, 0.5])
    found = survey(toy(), base, [0, 1], 0.15, 11)
    exact = (np.abs(found.points[3] - 0.09) + np.abs(found.points[4] - 0.03) + 0.5) / 3
    assert found.costs[3, 4] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (([0, 3], 0.1, 5), r"dimensions \[3\] are not 0 to 2"),
        (([0, 1], 0.0, 1), "span=0.0 must be above 0; count=1 must be at least 2"),
    ],
)
def test_no_grid_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        survey(toy(), TRUE, *settings)
