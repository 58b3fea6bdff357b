"""Exact models: equal to what they model step by step, differentiable, and solved by planners."""

from functools import partial

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.dynamics import PushTAgent, Quadratic, RoomDistance, TwoRoomDynamics
from jepa_wm.control.episode import Rules
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.control.protocol import cut_segments, segment_tasks
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.envs.play import PlayWorlds
from jepa_wm.envs.tworoom import TOLERANCE, TwoRoom
from jepa_wm.envs.tworoom_play import play
from jepa_wm.envs.tworoom_worlds import Rooms, TwoRoomWorlds
from jepa_wm.launch import build, preset_node

CPU = torch.device("cpu")
ROOMS = [
    Rooms(),
    Rooms(speed=10.5, thickness=41, doors=((49, 8),)),
    Rooms(speed=3.3, wall="horizontal", thickness=15, doors=((100, 1), (40, 12), (200, 21))),
]


def codec(block=2, std=0.7, low=-1.0, high=1.0):
    return ActionCodec(block=block, mean=[0.0, 0.1], std=[std] * 2, low=[low] * 2, high=[high] * 2)


def draws(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def context(states):
    """States [B,P] as the newest of two frames; the older one must not matter."""
    z = torch.stack([states + 7, states], 1)
    return Context(z, torch.zeros(len(states), 1, 4))


@pytest.mark.parametrize("rooms", ROOMS)
def test_tworoom_is_the_environment_to_the_bit(rooms):
    B, S, H = 3, 200, 8
    starts = torch.from_numpy(np.random.default_rng(0).uniform(14, 210, (B, 2)).astype(np.float32))
    model, actions = TwoRoomDynamics(codec(), rooms), 1.5 * draws(B, S, H, 4)
    found = model.rollout(context(starts), actions)
    assert found.shape == (B, S, H, 2) and found.dtype == torch.float32
    moves = model.codec.decode(actions).numpy()
    for b in range(B):
        worlds = TwoRoomWorlds(S, rooms)
        worlds.set_states(np.tile(starts[b].double().numpy(), (S, 1)))
        for step in range(2 * H):
            worlds.act(moves[b, :, step])
            if step % 2:
                assert np.array_equal(worlds.states(), found[b, :, step // 2].double().numpy())


def test_pushts_agent_is_the_environment_where_it_touches_nothing():
    wide = codec(std=0.2, low=-5.0, high=5.0)
    model, actions = PushTAgent(wide), draws(1, 6, 5, 4)
    start = torch.tensor([[400.0, 60, 150, 350, 0.3, 90, -40]], dtype=torch.float64)
    found = model.rollout(context(start), actions)
    moves, worlds = wide.decode(actions)[0].numpy(), PlayWorlds(6)
    worlds.set_states(np.tile(start.numpy(), (6, 1)))
    for step in range(10):
        worlds.act(moves[:, step])
        if step % 2:
            np.testing.assert_allclose(found[0, :, step // 2], worlds.states(), atol=1e-9)


def test_shares_of_an_action_that_pushts_agent_covers():
    model, push = PushTAgent(codec()), torch.tensor([[0.1, 0.0]], dtype=torch.float64)
    state = torch.zeros(1, 7, dtype=torch.float64)
    state = model.step(state, push)
    assert state[0, 0].item() / 10 == pytest.approx(0.295671786, abs=1e-9)
    for _ in range(30):
        before, state = state, model.step(state, push)
    assert (state - before)[0, 0].item() / 10 == pytest.approx(0.406931948, abs=1e-9)


def test_a_point_mass_goes_where_it_is_told():
    model, actions = Quadratic(codec(low=-9, high=9)), draws(2, 3, 4, 4)
    starts = draws(2, 2, seed=1, dtype=torch.float64)
    moves = model.codec.decode(actions).double()
    expected = starts[:, None, None] + moves.cumsum(2)[:, :, 1::2]
    torch.testing.assert_close(model.rollout(context(starts), actions), expected)


@pytest.mark.parametrize("kind", [Quadratic, PushTAgent, partial(TwoRoomDynamics, rooms=Rooms())])
def test_gradients_are_those_of_small_changes(kind):
    """In the open, away from walls and from actions that are cut."""
    model = kind(codec(std=0.1))
    starts = torch.full((1, model.state_dim), 60.0, dtype=model.dtype)
    actions = draws(1, 2, 3, 4, seed=2).requires_grad_()
    weights = draws(1, 2, 3, model.state_dim, seed=3).to(model.dtype)

    def total(at):
        return (model.rollout(context(starts), at) * weights).sum()

    (gradient,) = torch.autograd.grad(total(actions), actions)
    change = draws(1, 2, 3, 4, seed=4)
    with torch.no_grad():
        by_change = (total(actions + 0.1 * change) - total(actions - 0.1 * change)) / 0.2
    assert (gradient * change).sum().item() == pytest.approx(by_change.item(), rel=1e-3)
    assert (gradient != 0).all()


def test_gradients_through_the_wall_are_finite_everywhere():
    rooms = Rooms()
    model, goals = TwoRoomDynamics(codec(), rooms), torch.tensor([[180.0, 150.0]])
    cost = RolloutCost(
        model, partial(RoomDistance, rooms=rooms, tolerance=16.0), goals,
        context(torch.tensor([[99.5, 150.0]])),
    )  # fmt: skip
    actions = draws(1, 500, 10, 4).requires_grad_()
    values = cost(actions)
    values.sum().backward()
    assert values.isfinite().all() and actions.grad.isfinite().all()
    assert (actions.grad.abs().sum((0, 2, 3)) > 0).all()  # every candidate knows where to go


@pytest.mark.parametrize("spot", [[180.0, 60.0], [180.0, 150.0], [112.0, 49.0]])
def test_the_ways_gradient_is_finite_where_nothing_is_crossed(spot):
    z = torch.tensor(spot).view(1, 1, 1, 2).requires_grad_()
    RoomDistance(torch.tensor([[180.0, 150.0]]), Rooms(), 16.0)(z, z).sum().backward()
    assert z.grad.isfinite().all()


def test_the_way_to_the_goal_leads_through_the_door():
    rooms = Rooms()
    goal = torch.tensor([[130.0, 150.0]])
    distance = RoomDistance(goal, rooms, tolerance=16.0)
    spots = torch.tensor([[130.0, 134.0], [94, 150], [60, 49], [112, 49], [130, 150]])
    cost = distance(spots[None, :, None], torch.zeros(1, 5, 1, 4))
    door = torch.tensor([112.0, 56.0])  # the near edge of the middle half of the opening
    expected = [16.0, (spots[1] - door).norm() + (goal[0] - door).norm(), 52.46, 0, 0]
    assert cost.dtype == torch.float32 and cost.shape == (1, 5)
    assert cost[0, 0].sqrt() * 16 == pytest.approx(expected[0])
    assert cost[0, 1].sqrt() * 16 == pytest.approx(expected[1].item(), rel=1e-5)
    assert cost[0, 1] > 25 * (36 / 16) ** 2  # straight it is 36 px
    assert cost[0, 4] == 0
    turned = Rooms(wall="horizontal")
    again = RoomDistance(goal.flip(1), turned, tolerance=16.0)
    torch.testing.assert_close(again(spots.flip(1)[None, :, None], torch.zeros(1, 5, 1, 4)), cost)


def test_other_states_are_refused():
    with pytest.raises(ValueError, match=r"TwoRoomDynamics plans from states \[B,T,2\]"):
        TwoRoomDynamics(codec(), Rooms()).preprocess(torch.zeros(1, 1, 7))


def test_cem_finds_the_optimum_of_the_quadratic():
    wide = codec(block=1, std=1.0, low=-5, high=5)
    cost = RolloutCost(
        Quadratic(wide), partial(GoalDistance, norm="l2", reduce="sum", steps="last"),
        torch.tensor([[2.0, -3.0]]).double(), context(torch.zeros(1, 2).double()),
    )  # fmt: skip
    planner = build(preset_node("planner", "cem") | {"horizon": 3, "iterations": 20}, "planner")
    plan = planner.plan(
        cost, planner.start(1, 2, CPU), wide.bounds(), [torch.Generator().manual_seed(0)]
    )
    reached = cost.latents(plan.actions[:, None])[0, 0, -1]
    assert reached.tolist() == pytest.approx([2.0, -3.0], abs=0.05)


@pytest.mark.parametrize("planner", ["cem", "mppi", "random_shooting"])
def test_planners_solve_tworoom(planner):
    """Goals 25 steps ahead, half of them behind the wall, 50 steps: a miss is the planner's."""
    node, count = preset_node("task", "tworoom"), 16
    distance = build(node["distance"], "distance")
    units = {key: node["action"][key] for key in ("block", "mean", "std")}
    blocks = ActionCodec(**units, low=[-1.0] * 2, high=[1.0] * 2)
    recorded = play(77, count, 60)
    segments = cut_segments(recorded.states, recorded.actions, node["goal_offset"], 0)
    tasks = segment_tasks(segments, 0, lambda _: np.zeros((8, 8, 3), np.uint8), True)
    search = build(preset_node("planner", planner) | {"num_samples": 300}, "planner")
    agent = MPC(
        world_model=build(node["exact"], "exact")(blocks),
        planner=search,
        objective=distance,
        codec=blocks,
        device=CPU,
        replan_every=1,
        shrink_horizon=True,
    )
    envs = make_envs(lambda: TwoRoom(observation="state", render_size=8), count)
    rules = Rules(budget=node["budget"], success=node["success"], frames="state")
    try:
        episodes = run_episodes(envs, agent, tasks, rules)
    finally:
        envs.close()
    apart = np.linalg.norm(segments.starts - segments.goals, axis=1) >= TOLERANCE
    assert apart.sum() >= 12
    missed = [e.id for e, is_apart in zip(episodes, apart, strict=True) if is_apart > e.success]
    assert not missed, f"{planner} missed {missed}"
