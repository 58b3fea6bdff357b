"""Costs of latents for one goal, by hand."""

from importlib.resources import files

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jepa_wm.control.objectives import (
    ActionPenalty,
    GoalDistance,
    GoalList,
    SmoothnessPenalty,
    WeightedSum,
)
from jepa_wm.control.proprio import ProprioDistance
from jepa_wm.control.situation import Situation, informed
from jepa_wm.errors import ConfigError

CONF = files("jepa_wm.conf").joinpath("objective")
NAMES = sorted(entry.name[:-5] for entry in CONF.iterdir() if entry.name.endswith(".yaml"))
Z = torch.tensor([[[[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]]])  # [1,1,3,2]
GOAL = torch.tensor([[0.0, 1.0]])
NONE = torch.zeros(1, 1, 3, 4)
STANDING = Situation(
    block=5, goal_proprio=torch.zeros(2, 7), predict=lambda actions: torch.zeros(2, 2, 5, 7)
)


@pytest.mark.parametrize(
    ("norm", "reduce", "steps", "cost"),
    [
        ("l2", "sum", "last", 2.0),
        ("l2", "mean", "last", 1.0),
        ("l1", "sum", "last", 2.0),
        ("l2", "sum", "mean", (1 + 18 + 2) / 3),
        ("l1", "mean", "mean", (0.5 + 3 + 1) / 3),
        ("l2", "sum", "sum", 21.0),
        ("l2", "sum", "min", 1.0),
        ("cosine", "mean", "last", 1.0),
        ("cosine", "sum", "mean", (1 + 0.2 + 1) / 3),
        ("l2", "sum", {"steps": "discount", "gamma": 2.0}, (1 * 1 + 2 * 18 + 4 * 2) / 7),
        ("l2", "sum", {"steps": "discount", "gamma": 0.5}, (4 * 1 + 2 * 18 + 1 * 2) / 7),
        ({"norm": "huber", "delta": 1.0}, "sum", "sum", 0.5 + (2.5 + 2.5) + (0.5 + 0.5)),
        ({"norm": "huber", "delta": 2.0}, "mean", "sum", (0.5 + (4 + 4) + (0.5 + 0.5)) / 2),
    ],
)
def test_distances_by_hand(norm, reduce, steps, cost):
    norm = norm if isinstance(norm, dict) else {"norm": norm}
    steps = steps if isinstance(steps, dict) else {"steps": steps}
    objective = GoalDistance(GOAL, reduce=reduce, **norm, **steps)
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
    for wrong, message in (
        ({"norm": "huber"}, "delta=None: norm=huber needs a number > 0"),
        ({"norm": "huber", "delta": 0}, "delta=0: norm=huber needs"),
        ({"steps": "discount", "gamma": "high"}, "gamma='high': steps=discount needs"),
        ({"gamma": 0.9}, "gamma=0.9 is for steps=discount alone"),
        ({"delta": 1.0}, "delta=1.0 is for norm=huber alone"),
    ):
        with pytest.raises(ValueError, match=message):
            GoalDistance(GOAL, **{"norm": "l2", "reduce": "sum", "steps": "last"} | wrong)


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
    cost = informed(factory(goal), STANDING)(z, torch.zeros(2, 2, 5, 10))
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


# --- lists of goals -------------------------------------------------------------------------------

LINE = torch.tensor([[[[0.0], [2.0], [1.0], [5.0]]]])  # [1,1,4,1], a path on a line
PAIR = torch.tensor([[[1.0], [2.0]]])  # goals 1 and 2, [1,2,1]


def goal_list(goals=PAIR, **settings):
    plain = {"norm": "l1", "reduce": "sum", "steps": "min", "order": "any"}
    return GoalList(goals, **plain | settings)


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({"steps": "last"}, 3.0),  # 5 from 2
        ({"steps": "last", "weights": [0.5, 10.0]}, 2.0),  # half of 5 from 1
        ({"order": "all"}, 0.0),  # both are passed, 2 before 1
        ({"order": "all", "steps": "last"}, 4.0 + 3.0),
        ({"order": "sequence"}, 1.0),  # 1 missed by 1 in the first or second step, then 2 hit
        ({"order": "sequence", "weights": [3.0, 1.0]}, 1.0),  # 1 hit in the third, 2 missed by 1
        ({"order": "sequence", "steps": "last"}, 0.0 + 3.0),  # 1 hit, then the end counts
    ],
)
def test_lists_of_goals_by_hand(settings, cost):
    assert goal_list(**settings)(LINE, NONE).tolist() == [[cost]]


@pytest.mark.parametrize("steps", ["last", "min"])
def test_goals_in_turn_cost_the_least_over_all_orderly_times(steps):
    generator = torch.Generator().manual_seed(0)
    z, goals = (torch.randn(*s, generator=generator) for s in ((2, 3, 5, 4), (2, 3, 4)))
    weights = [1.0, 0.5, 2.0]
    found = goal_list(goals, norm="l2", steps=steps, order="sequence", weights=weights)(z, NONE)
    d = (z[:, :, :, None] - goals[:, None, None]).square().sum(-1)  # [B,S,H,K]
    times = [t for t in torch.cartesian_prod(*[torch.arange(5)] * 3).tolist() if sorted(t) == t]
    if steps == "last":
        times = [t for t in times if t[-1] == 4]
    sums = [
        sum(w * d[:, :, t, k] for k, (w, t) in enumerate(zip(weights, one, strict=True)))
        for one in times
    ]
    torch.testing.assert_close(found, torch.stack(sums).amin(0))


def test_what_is_no_list_of_goals_is_refused():
    for wrong, message in (
        ({"order": "some"}, "order='some' .one of any, all, sequence"),
        ({"order": "sequence", "steps": "mean"}, "steps='mean' .order=sequence takes last or min"),
        ({"weights": [1.0]}, r"weights=\[1.0\] must be 2 numbers > 0"),
        ({"weights": [1.0, -1.0]}, "must be 2 numbers > 0"),
        ({"goals": GOAL}, r"a list of goals is \[B,K,\*L\], got \[1, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            goal_list(**wrong)
    with pytest.raises(ValueError, match="do not fit goal"):
        goal_list()(LINE.expand(1, 1, 4, 3), NONE)


# --- what actions and poses cost ------------------------------------------------------------------


def test_smoothness_counts_changes_within_blocks_across_them_and_from_the_last_action():
    # two blocks of two steps of two numbers
    actions = torch.tensor([[[[0.0, 0.0, 1.0, 0.0], [1.0, 2.0, 1.0, 5.0]]]])
    penalty = SmoothnessPenalty(GOAL)
    cold = informed(penalty, Situation(block=2))(Z, actions)
    assert cold.tolist() == [[1.0 + 4.0 + 9.0]]
    before = torch.tensor([[7.0, 7.0, 0.0, 3.0]])  # its last step is (0, 3)
    warm = informed(penalty, Situation(block=2, before=before))(Z, actions)
    assert warm.tolist() == [[9.0 + 1.0 + 4.0 + 9.0]]
    with pytest.raises(ConfigError, match="situation"):
        penalty(Z, actions)


def proprio(**settings):
    return ProprioDistance(GOAL, **{"norm": "l2", "reduce": "sum", "steps": "last"} | settings)


def test_proprioception_is_compared_where_the_plan_leads():
    turn = 2 * torch.pi
    found = torch.tensor([[[[9.0, 9.0, 9.0], [1.0, 3.0, turn - 0.1]]]])  # [1,1,2,3]
    now = Situation(
        block=1, goal_proprio=torch.tensor([[0.0, 1.0, 0.1]]), predict=lambda actions: found
    )
    cost = informed(proprio(dims=[0, 1], scale=[0.5, 2.0]), now)(Z, NONE)
    assert cost.tolist() == [[4.0 + 1.0]]
    angle = informed(proprio(dims=[2], wraps=[2], norm="l1"), now)(Z, NONE)
    assert angle.item() == pytest.approx(0.2, abs=1e-6)
    whole = informed(proprio(wraps=[2], reduce="mean", steps="mean"), now)(Z, NONE)
    first = (81 + 64 + (8.9 - turn) ** 2) / 3
    assert whole.item() == pytest.approx((first + (1 + 4 + 0.04) / 3) / 2, rel=1e-5)


def test_what_is_no_proprioception_is_one_line():
    known = {
        "block": 1,
        "goal_proprio": torch.zeros(1, 3),
        "predict": lambda a: torch.ones(1, 1, 3, 3),
    }
    for settings, changes, message in (
        ({}, {"predict": None}, "the model predicts no proprioception"),
        ({}, {"goal_proprio": None}, "the goal's proprioception is not known"),
        (
            {},
            {"goal_proprio": torch.zeros(1, 4)},
            r"\[1, 1, 3, 3\] predicted does not fit .*\[1, 4\]",
        ),
        ({"dims": [0, 3]}, {}, r"dims=\[0, 3\] .* must be below 3"),
        ({"scale": [1.0, 2.0]}, {}, "scale has 2 numbers for 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            informed(proprio(**settings), Situation(**known | changes))(Z, NONE)
    for settings in ({"scale": 0.0}, {"dims": [-1]}, {"wraps": [0.5]}, {"norm": "cosine"}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            proprio(**settings)


def test_a_weighted_sum_tells_its_terms_the_situation():
    both = WeightedSum(
        GOAL,
        terms=[lambda goal: proprio(), SmoothnessPenalty],
        weights=[2.0, 0.5],
    )
    before = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    now = Situation(
        block=2, before=before, goal_proprio=torch.ones(1, 3), predict=lambda a: a[..., :3]
    )
    assert informed(both, now)(Z, NONE).tolist() == [[2.0 * 3.0 + 0.5 * 2.0]]


# --- gradients ------------------------------------------------------------------------------------


def smooth(z, before=None):
    return informed(SmoothnessPenalty(z), Situation(block=2, before=before))


def posed(z):
    now = Situation(
        block=1, goal_proprio=torch.zeros(2, 3).double(), predict=lambda a: a[..., :3].sin()
    )
    return informed(proprio(wraps=[2], steps="mean"), now)


DISTANCES = [
    {"norm": norm, "reduce": reduce, "steps": steps}
    | ({"delta": 0.3} if norm == "huber" else {})
    | ({"gamma": 0.7} if steps == "discount" else {})
    for norm, reduce in (("l2", "sum"), ("l1", "mean"), ("cosine", "sum"), ("huber", "mean"))
    for steps in ("last", "mean", "sum", "min", "discount")
]
OBJECTIVES = {
    **{
        "-".join(map(str, s.values())): lambda z, s=s: GoalDistance(z[:, 0], **s) for s in DISTANCES
    },
    **{
        f"{order}-{steps}": lambda z, o=order, s=steps: goal_list(z, norm="l2", order=o, steps=s)
        for order in ("any", "all", "sequence")
        for steps in ("last", "min")
    },
    "effort": lambda z: ActionPenalty(z),
    "smooth": smooth,
    "smooth-on": lambda z: smooth(z, torch.ones(2, 4).double()),
    "proprio": posed,
    "sum": lambda z: WeightedSum(
        z,
        terms=[
            lambda z: GoalDistance(z[:, 0], norm="l2", reduce="sum", steps="last"),
            ActionPenalty,
            SmoothnessPenalty,
        ],
        weights=[1.0, 0.1, 0.3],
        situation=Situation(block=2),
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_the_cost(name):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    objective = OBJECTIVES[name](draw(2, 3, 5))
    z, actions = draw(2, 2, 4, 5).requires_grad_(), draw(2, 2, 4, 4).requires_grad_()
    kept = z.detach().clone(), actions.detach().clone()
    assert torch.autograd.gradcheck(objective, (z, actions))
    assert torch.equal(z, kept[0]) and torch.equal(actions, kept[1]), "arguments are not changed"


def test_huber_has_no_corner_where_it_turns():
    at = torch.tensor([[[[0.999999], [1.000001]]]], dtype=torch.float64).requires_grad_()
    objective = GoalDistance(torch.zeros(1, 1), norm="huber", delta=1.0, reduce="sum", steps="sum")
    (slope,) = torch.autograd.grad(objective(at, NONE).sum(), at)
    torch.testing.assert_close(slope.flatten(), torch.ones(2).double(), atol=1e-5, rtol=0)
