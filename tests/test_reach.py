"""Reach: the arm's arithmetic and pushes, the pictures, the experts, the play."""

import warnings

import numpy as np
import pytest
import torch

from jepa_wm.envs.reach import TOLERANCE, Reach
from jepa_wm.envs.reach_experts import push_expert, reach_expert
from jepa_wm.envs.reach_play import play, start_states
from jepa_wm.envs.reach_rendering import CANVAS, ReachRenderer, project
from jepa_wm.envs.reach_worlds import (
    BLOCK_HEIGHT,
    BLOCK_HIGH,
    BLOCK_LOW,
    BLOCK_SIDE,
    GRIPPER_RADIUS,
    HIGH,
    HOME_STATE,
    LOW,
    ReachWorlds,
)
from jepa_wm.models.pose import compose

START = np.array([0.45, -0.1, 0.2, 0.2, -0.1, 0.4, 0.3, 0.5, 0.1, 0.5])


def starts(count, seed=0):
    return start_states([np.random.default_rng([seed, row]) for row in range(count)])


def world(state):
    worlds = ReachWorlds(1)
    worlds.set_states(np.array([state], float))
    return worlds


def move(worlds, *xyz):
    """Move the arm of one world by metres; return its state."""
    worlds.act(np.array([[*xyz, 0, 0, 0, 0]]))
    return worlds.states()[0]


def beside(z, x=0.42):
    return np.array([x, 0.1, z, 0, 0, 0, 0, 0.5, 0.1, 0.3])


def overlap(state):
    """How far the gripper is inside the block, metres; negative where they are apart."""
    c, s = np.cos(state[9]), np.sin(state[9])
    dx, dy = state[:2] - state[7:9]
    beyond = np.abs([c * dx + s * dy, c * dy - s * dx]) - BLOCK_SIDE / 2
    apart = np.hypot(*np.maximum(beyond, 0)) if (beyond > 0).any() else beyond.max()
    return GRIPPER_RADIUS - apart


def chase(rng, states):
    """Low moves at the block, and now and then over it."""
    actions = np.zeros((len(states), 7))
    actions[:, :2] = states[:, 7:9] - states[:, :2] + rng.normal(0, 0.06, (len(states), 2))
    actions[:, 2] = np.where(rng.random(len(states)) < 0.1, 0.07, 0.04 - states[:, 2])
    return actions


# --- the arm -------------------------------------------------------------------------------------


def test_golden_moves_turn_grip_and_stop_at_the_limits():
    worlds = world(START)
    wanted = [
        [0.5, -0.08, 0.17, 0.213449829, -0.322921755, 0.707201121, 0.8],
        [0.575, -0.155, 0.245, 0.67465484, -0.611233107, 0.494360272, 1.0],
        [0.575, -0.155, 0.32, 0.67465484, -0.611233107, 0.494360272, 0.0],
    ]
    actions = [
        [0.05, 0.02, -0.03, 0.1, -0.2, 0.3, 0.5],
        [0.2, -0.2, 0.2, 0.9, 0, 0, 0.5],  # beyond what a step can do
        [0, 0, 0.1, 0, 0, 0, -2],
    ]
    for action, row in zip(actions, wanted, strict=True):
        worlds.act(np.array([action]))
        assert worlds.states()[0] == pytest.approx([*row, 0.5, 0.1, 0.5], abs=1e-9)


def test_poses_compose_as_the_models_do():
    """Also where the second angle is a right one and the outer two turn about the same axis."""
    rng = np.random.default_rng(0)
    states, actions = starts(200), rng.uniform(-0.5, 0.5, (200, 7))
    states[:, 3:6] = rng.uniform(-1, 1, (200, 3)) * [3.1, 1.5, 3.1]
    states[:20, 4] = np.pi / 2 * np.sign(states[:20, 4])
    states[:20, 5], actions[:20, 3:5] = 0.0, 0.0
    actions[:, :3] *= 0.1
    states[:, :3] = [0.5, 0.0, 0.2]
    worlds = ReachWorlds(200)
    worlds.set_states(states)
    worlds.act(actions)
    wanted = compose(torch.from_numpy(states[:, :7]), torch.from_numpy(actions)).numpy()
    gap = worlds.states()[:, :7] - wanted
    gap[:, 3:6] = (gap[:, 3:6] + np.pi) % (2 * np.pi) - np.pi
    assert np.abs(gap).max() < 1e-9


def test_an_arm_that_does_not_turn_keeps_its_angles_to_the_bit():
    worlds = world(START)
    for _ in range(5):
        state = move(worlds, 0.01, 0, 0)
    assert np.array_equal(state[3:6], START[3:6])


def test_worlds_in_a_batch_equal_worlds_alone_to_the_bit():
    states, rng = starts(24), np.random.default_rng(1)
    batch, alone = ReachWorlds(24), [world(state) for state in states]
    batch.set_states(states)
    for _ in range(25):
        actions = chase(rng, batch.states())
        actions[:, 3:] = rng.uniform(-0.5, 0.5, (24, 4))
        batch.act(actions)
        for one, action in zip(alone, actions, strict=True):
            one.act(action[None])
        assert np.array_equal(batch.states(), np.concatenate([one.states() for one in alone]))
    moved = np.abs(batch.states()[:, 7:9] - states[:, 7:9]).sum(1) > 0.01
    assert moved.mean() > 0.8, moved.mean()


def test_worlds_used_before_go_on_like_new_ones():
    used, states, rng = world(starts(1, seed=3)[0]), starts(1), np.random.default_rng(0)
    for _ in range(10):
        used.act(chase(rng, used.states()))
    fresh = world(states[0])
    used.set_states(states)
    for _ in range(20):
        actions = chase(rng, fresh.states())
        used.act(actions)
        fresh.act(actions)
        assert np.array_equal(used.states(), fresh.states())


@pytest.mark.parametrize("bad", [np.zeros((2, 7)), np.zeros((3, 10)), np.full((2, 10), np.nan)])
def test_worlds_refuse_bad_states(bad):
    with pytest.raises(ValueError, match=r"states must be finite \[2, 10\]"):
        ReachWorlds(2).set_states(bad)


# --- the block -----------------------------------------------------------------------------------


def test_golden_push():
    worlds = world([0.42, 0.09, 0.035, 0, 0, 0, 1, 0.5, 0.1, 0.3])
    wanted = [
        [0.543279364, 0.101762546, 0.33707535],
        [0.59365701, 0.106948644, 0.230147609],
        [0.642837308, 0.11299827, -0.078247114],
        [0.680768215, 0.11386013, -0.507006553],
    ]
    for step, row in enumerate(wanted):
        assert move(worlds, 0.05, 0.01 * step, 0)[7:] == pytest.approx(row, abs=1e-8), step


def test_the_block_moves_only_where_the_arm_is_low_enough():
    low, high = (move(world(beside(z)), 0.05, 0, 0) for z in (BLOCK_HEIGHT - 0.001, BLOCK_HEIGHT))
    assert low[7] > 0.51
    assert np.array_equal(high[7:], beside(0)[7:])


def test_an_arm_that_comes_down_on_the_block_rests_on_it():
    state = move(world(beside(0.12, x=0.5)), 0, 0, -0.075)
    assert state[2] == BLOCK_HEIGHT and np.array_equal(state[7:], beside(0)[7:])
    assert move(world(beside(0.12, x=0.38)), 0, 0, -0.075)[2] == pytest.approx(0.045)


def test_a_move_that_rises_goes_up_first_and_passes_over():
    worlds = world(beside(0.03))
    assert move(worlds, 0.075, 0, 0.05)[2] == pytest.approx(0.08)
    state = move(worlds, 0, 0, -0.06)  # it is above the block now
    assert state[2] == BLOCK_HEIGHT and np.array_equal(state[7:], beside(0)[7:])


def test_the_arm_never_sinks_into_the_block():
    """Arms chase their blocks, which soon are at the border, and turn there."""
    worlds, rng = ReachWorlds(150), np.random.default_rng(1)
    worlds.set_states(starts(150, seed=1))
    inside, border = [0.0], [0.0]
    for _ in range(20):
        worlds.act(chase(rng, worlds.states()))
        for state in worlds.states():
            at_border = min(state[7:9] - BLOCK_LOW) < 0.02 or min(BLOCK_HIGH - state[7:9]) < 0.02
            if state[2] < BLOCK_HEIGHT:
                (border if at_border else inside).append(1000 * overlap(state))
    assert max(inside) < 0.5, f"{max(inside):.2f} mm"
    assert max(border) < 2.5, f"{max(border):.2f} mm"


def test_a_corner_caught_in_a_fast_move_leaves_the_arm():
    worlds = world([0.5, 0.103, 0.03, 0, 0, 0, 0, 0.5, 0, -0.474])
    state = move(worlds, -0.075, -0.075, 0)
    assert abs(state[9] + 0.474) > 0.05 and 1000 * overlap(state) < 0.5


def test_a_block_at_the_border_stops_the_arm():
    start = np.array([0.6, 0.1, 0.03, 0, 0, 0, 0, 0.68, 0.1, 0.0])
    worlds = world(start)
    for _ in range(3):
        state = move(worlds, 0.05, 0, 0)
    assert state[7] == 0.7
    assert state[0] == pytest.approx(0.7 - BLOCK_SIDE / 2 - GRIPPER_RADIUS, abs=0.004)
    assert move(worlds, -0.05, 0, 0)[0] == pytest.approx(state[0] - 0.05)  # and lets it go


# --- episodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["reach", "push"])
def test_starts_are_clear_of_the_block_and_not_solved(task):
    env = Reach(task=task, observation="state")
    for seed in range(200):
        state, info = env.reset(seed=seed)
        goal = info["goal_state"]
        assert not info["is_success"]
        assert state[2] > 0.1 or overlap(state) < 0
        if task == "reach":
            assert np.array_equal(goal[7:], state[7:])  # the same table
        else:
            assert np.linalg.norm(goal[7:9] - state[7:9]) >= TOLERANCE


def test_one_option_given_leaves_the_other_drawn_alike():
    env = Reach(task="push", observation="state")
    state, info = env.reset(seed=7)
    other, given_start = env.reset(seed=7, options={"state": START})
    assert np.array_equal(other, START)
    assert np.array_equal(info["goal_state"], given_start["goal_state"])
    again, given_goal = env.reset(seed=7, options={"goal_state": START})
    assert np.array_equal(again, state) and np.array_equal(given_goal["goal_state"], START)


@pytest.mark.parametrize("task", ["reach", "push"])
def test_info_is_complete_and_agrees(task):
    env = Reach(task=task, observation="dict", terminate=False)
    rng, (seen, info) = np.random.default_rng(0), env.reset(seed=1)
    outcomes = set()
    for _ in range(30):
        goal = seen["state"] + rng.normal(0, 0.03, 10)
        env.set_goal(goal)
        seen, reward, terminated, _, info = env.step(rng.uniform(-0.03, 0.03, 7))
        state = seen["state"]
        gripper, block = (np.linalg.norm((state - goal)[at]) for at in (slice(3), slice(7, 9)))
        assert (info["pos_err"], info["block_err"]) == pytest.approx((gripper, block))
        assert info["success_reach"] == (gripper < 0.05)
        assert info["success_push"] == (block < 0.05)
        assert info["is_success"] == info[f"success_{task}"] and not terminated
        assert reward == pytest.approx(-(gripper if task == "reach" else block))
        assert np.array_equal(info["state"], state)
        assert np.array_equal(info["proprio"], state[:7].astype(np.float32))
        assert np.array_equal(info["proprio"], seen["proprio"])
        outcomes.add(info["is_success"])
    assert outcomes == {True, False}


def test_success_ends_the_episode():
    env = Reach(observation="state")
    env.reset(options={"state": START, "goal_state": START + np.r_[0.12, np.zeros(9)]})
    ends = [env.step([0.04, 0, 0, 0, 0, 0, 0])[2] for _ in range(2)]
    assert ends == [False, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Reach(task="lift"), "task='lift' is unknown; use one of reach, push"),
        (lambda: Reach(observation="rgb"), "observation='rgb'"),
        (lambda: Reach(render_size=0), "render_size=0 must be 1 to 512"),
        (lambda: Reach(render_mode="ansi"), "render_mode='ansi'"),
        (lambda: Reach().reset(options={"start": START}), "unknown reset options"),
        (lambda: Reach().reset(options={"state": START[:7]}), "state must be 10 finite numbers"),
        (
            lambda: Reach().reset(options={"state": START + np.r_[1, np.zeros(9)]}),
            "state is outside the workspace: x=1.45 must be 0.3 to 0.7",
        ),
        (lambda: Reach().reset(options={"goal_state": [np.inf] * 10}), "goal_state must be"),
        (lambda: Reach().step(np.zeros(6)), "action must be 7 finite numbers"),
        (lambda: Reach().step([np.nan] * 7), "action must be 7 finite numbers"),
        (lambda: ReachWorlds(0), "count=0"),
    ],
)
def test_refusals_say_what_was_wrong(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def run_expert(task, expert, steps, count=150):
    env, drawn = Reach(task=task, observation="state"), []
    for seed in range(count):
        state, info = env.reset(seed=seed)
        drawn.append((state, info["goal_state"]))
    states, goals = (np.stack(rows) for rows in zip(*drawn, strict=True))
    worlds, at = ReachWorlds(count), slice(3) if task == "reach" else slice(7, 9)
    worlds.set_states(states)
    done = np.zeros(count, bool)
    for _ in range(steps):
        actions = expert(worlds.states(), goals)
        assert all(env.action_space.contains(action) for action in actions)
        worlds.act(actions)
        done |= np.linalg.norm((worlds.states() - goals)[:, at], axis=1) < TOLERANCE
    return done.mean()


def test_the_experts_do_what_the_tasks_ask():
    """Measured over 300 episodes: reach 100 % in 6 steps, push 90 % in 10 and 99 % in 20."""
    assert run_expert("reach", reach_expert, 10) == 1
    assert run_expert("push", push_expert, 40) > 0.95


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 128, 256])
def test_small_pictures_are_means_of_the_canvas(size):
    renderer = ReachRenderer(size)
    for state in starts(10):
        whole = renderer.canvas(state).astype(float)
        means = whole.reshape(size, CANVAS // size, size, -1, 3).mean((1, 3))
        assert np.abs(renderer.render(state) - means).max() <= 2


def test_the_whole_workspace_is_in_the_picture():
    corners = np.stack(np.meshgrid(*zip(LOW, HIGH, strict=True)), -1).reshape(-1, 3)
    places, _ = project(corners)
    assert places.min() > 50 and places.max() < CANVAS - 50


def count(frame, colour):
    return int((frame == np.array(colour)).all(-1).sum())


def test_what_is_nearer_hides_what_is_farther():
    """The camera looks from the far right: an arm beyond the block is hidden, one before it not."""
    fingers, renderer = (30, 30, 34), ReachRenderer(CANVAS)
    alone = (*HOME_STATE[:2], 0.02, 0, 0, 0, 0, 0.3, -0.2, 0)
    behind = (0.5, 0.0, 0.02, 0, 0, 0, 0, 0.57, -0.02, 0)
    before = (0.5, 0.0, 0.02, 0, 0, 0, 0, 0.43, 0.02, 0)
    above = (0.5, 0.0, 0.075, 0, 0, 0, 0, 0.53, -0.01, 0)
    seen = {
        name: renderer.canvas(np.array(state))
        for name, state in locals().items()
        if name in ("alone", "behind", "before", "above")
    }
    whole = count(seen["alone"], fingers)
    assert count(seen["behind"], fingers) < 0.7 * whole
    assert count(seen["before"], fingers) == whole
    assert count(seen["above"], fingers) > 0.95 * whole


@pytest.mark.parametrize("index", range(10))
def test_every_number_of_the_state_is_seen(index):
    """At 64 px too: a model must be able to read it off the picture."""
    renderer, other = ReachRenderer(64), START.copy()
    other[index] += 0.03 if index in (0, 1, 2, 7, 8) else 0.4
    change = np.abs(renderer.render(other).astype(int) - renderer.render(START)).max()
    assert change > 20, change


def test_height_alone_leaves_the_shadow_where_it_is():
    renderer, high = ReachRenderer(CANVAS), np.array(HOME_STATE)
    low = high.copy()
    low[2] = 0.1
    middles = []
    for state in (low, high):
        rows, columns = np.nonzero((renderer.canvas(state) == (150, 134, 112)).all(-1))
        middles.append((rows.mean(), columns.mean()))
    assert middles[0] == pytest.approx(middles[1], abs=6)
    tips = project(np.stack([low[:3], high[:3]]))[0]
    assert tips[0, 1] - tips[1, 1] > 40  # px that 10 cm of height move the gripper


def test_the_goal_mark_is_drawn_on_request():
    plain, marked = (Reach(draw_goal=how, observation="pixels") for how in ("none", "goal"))
    frames = [env.reset(seed=0)[0] for env in (plain, marked)]
    assert (frames[0] != frames[1]).any()
    assert np.array_equal(plain.render_state(START), Reach().render_state(START))


@pytest.mark.parametrize(
    "place", [(0, 0, 0), (0, 0, 5), (1.3, -0.42, 0.78), (1e5, 1e5, 1e5), (-1e5, 9, 1e5)]
)
def test_any_state_can_be_drawn(place):
    renderer = ReachRenderer(64)
    renderer.set_goal(place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = renderer.render(np.array([*place, 1, 2, 3, 0, *place[:2], 0]))
    assert frame.shape == (64, 64, 3) and frame.dtype == np.uint8


# --- play ----------------------------------------------------------------------------------------


def test_play_is_the_same_however_it_is_cut_up():
    whole = play(3, 6, 15)
    parts = [play(3, 2, 15, first=first) for first in (0, 2, 4)]
    assert np.array_equal(whole.states, np.concatenate([part.states for part in parts]))
    assert np.array_equal(whole.actions, np.concatenate([part.actions for part in parts]))
    assert not np.array_equal(whole.states, play(4, 6, 15).states)


def test_play_is_what_the_worlds_do():
    recorded = play(0, 5, 20)
    worlds, space = ReachWorlds(5), Reach().action_space
    worlds.set_states(recorded.states[:, 0])
    for step in range(20):
        assert all(space.contains(action) for action in recorded.actions[:, step])
        worlds.act(recorded.actions[:, step])
        assert np.array_equal(worlds.states(), recorded.states[:, step + 1])


def test_play_pushes_the_block_as_often_as_asked():
    """Over 40 steps nine pushing episodes of ten carry the block more than 5 cm."""
    far = {}
    for push in (0.0, 0.9):
        states = play(0, 60, 40, push=push, jitter=0.0).states
        far[push] = (np.linalg.norm(states[:, -1, 7:9] - states[:, 0, 7:9], axis=1) > 0.05).mean()
    assert far[0.9] > 0.75 and far[0.0] < 0.3, far


def test_play_covers_the_workspace():
    states = play(0, 60, 40).states[..., :3].reshape(-1, 3)
    low, high = np.quantile(states, [0.02, 0.98], axis=0)
    assert (high - low > 0.8 * (HIGH - LOW)).all(), (low, high)
