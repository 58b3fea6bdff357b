"""Costs of latents for one goal, by hand."""

from importlib.resources import files

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jepa_wm.control.objectives import ActionPenalty, GoalDistance, WeightedSum

CONF = files("jepa_wm.conf").joinpath("objective")
NAMES = sorted(entry.name[:-5] for entry in CONF.iterdir() if entry.name.endswith(".yaml"))
Z = torch.tensor([[[[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]]])  # [1,1,3,2]
GOAL = torch.tensor([[0.0, 1.0]])
NONE = torch.zeros(1, 1, 3, 4)


@pytest.mark.parametrize(
    ("norm", "reduce", "steps", "cost"),
    [
        ("l2", "sum", "last", 2.0),
        ("l2", "mean", "last", 1.0),
        ("l1", "sum", "last", 2.0),
        ("l2", "sum", "all", (1 + 18 + 2) / 3),
        ("l1", "mean", "all", (0.5 + 3 + 1) / 3),
        ("l2", "sum", "min", 1.0),
        ("cosine", "mean", "last", 1.0),
        ("cosine", "sum", "all", (1 + 0.2 + 1) / 3),
    ],
)
def test_distances_by_hand(norm, reduce, steps, cost):
    objective = GoalDistance(GOAL, norm=norm, reduce=reduce, steps=steps)
    torch.testing.assert_close(objective(Z, NONE), torch.tensor([[cost]]))


def test_token_latents_are_reduced_over_tokens_and_width():
    z, goal = torch.randn(2, 3, 4, 5, 6), torch.randn(2, 5, 6)
    gap = z[:, :, -1] - goal[:, None]
    whole = GoalDistance(goal, norm="l2", reduce="sum", steps="last")(z, NONE)
    torch.testing.assert_close(whole, gap.square().sum((2, 3)))
    mean = GoalDistance(goal, norm="l1", reduce="mean", steps="last")(z, NONE)
    torch.testing.assert_close(mean, gap.abs().mean((2, 3)))
    cosine = GoalDistance(goal, norm="cosine", reduce="mean", steps="last")(z, NONE)
    each = torch.cosine_similarity(z[:, :, -1], goal[:, None], dim=-1)
    torch.testing.assert_close(cosine, (1 - each).mean(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_latents_are_summed_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 300, 1, 192, generator=generator).to(dtype)
    goal = torch.randn(1, 192, generator=generator).to(dtype)
    cost = GoalDistance(goal, norm="l2", reduce="sum", steps="last")(z, NONE)
    exact = (z[:, :, 0].double() - goal.double()[:, None]).square().sum(2)
    assert cost.dtype == torch.float32
    torch.testing.assert_close(cost.double(), exact, rtol=1e-6, atol=0)


def test_each_row_has_its_own_goal():
    z, goals = torch.zeros(2, 3, 1, 2), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    cost = GoalDistance(goals, norm="l2", reduce="sum", steps="last")(z, NONE)
    assert cost.tolist() == [[1.0] * 3, [9.0] * 3]


def test_a_goal_of_another_shape_is_refused_and_not_broadcast():
    objective = GoalDistance(torch.zeros(1, 2), norm="l2", reduce="sum", steps="last")
    with pytest.raises(ValueError, match=r"latents \[2, 3, 1, 2\] do not fit goal \[1, 2\]"):
        objective(torch.zeros(2, 3, 1, 2), NONE)


def test_unknown_settings_are_refused_all_at_once():
    with pytest.raises(ValueError, match=r"norm='l3'.*; steps='first'"):
        GoalDistance(GOAL, norm="l3", reduce="sum", steps="first")


def test_a_weighted_sum_adds_its_terms():
    actions = torch.full((1, 1, 3, 4), 0.5)
    both = WeightedSum(
        GOAL,
        terms=[
            lambda goal: GoalDistance(goal, norm="l2", reduce="sum", steps="last"),
            ActionPenalty,
        ],
        weights=[2.0, 0.1],
    )
    torch.testing.assert_close(both(Z, actions), torch.tensor([[2 * 2.0 + 0.1 * 3.0]]))
    with pytest.raises(ValueError, match="1 terms but 2 weights"):
        WeightedSum(GOAL, terms=[ActionPenalty], weights=[1.0, 2.0])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_makes_a_factory_that_prefers_the_goal(name):
    node = OmegaConf.load(str(CONF.joinpath(f"{name}.yaml")))
    if node.get("goal_map") == "bundle":  # whoever opens the bundle puts its map in
        node.goal_map = None
    factory = instantiate(node)
    goal = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    at_goal = goal[:, None, None].expand(2, 1, 5, 8)
    z = torch.cat([at_goal, -at_goal], 1)  # [2,2,5,8]
    cost = factory(goal)(z, torch.zeros(2, 2, 5, 10))
    assert cost.shape == (2, 2)
    assert (cost[:, 0] < cost[:, 1]).all()


def test_a_goal_map_weighs_what_it_maps_to():
    goal = torch.tensor([[1.0, 2.0, 3.0]])
    goal_map = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    z = torch.tensor([[[[1.5, 9.0, 5.0]]]])  # [1,1,1,3]
    cost = GoalDistance(goal, norm="l2", reduce="sum", steps="last", goal_map=goal_map)
    assert cost(z, torch.zeros(1, 1, 1, 2)).item() == pytest.approx(1.0 + 4.0)  # 9.0 is not seen
    for wrong in (goal_map[:, :2], "bundle"):
        with pytest.raises(ValueError, match="goal_map"):
            GoalDistance(goal, norm="l2", reduce="sum", steps="last", goal_map=wrong)
