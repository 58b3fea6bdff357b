"""What every environment in conf/env must do, and PushT to the digit of its references."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import gymnasium as gym
import numpy as np
import pygame
import pymunk
import pymunk.pygame_util
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pymunk.space_debug_draw_options import SpaceDebugColor

from jepa_wm.envs import metrics
from jepa_wm.envs.maze_play import maze_expert
from jepa_wm.envs.maze_play import start_states as maze_starts
from jepa_wm.envs.maze_worlds import MazeMap
from jepa_wm.envs.physics import HOME_STATE, PushTWorlds
from jepa_wm.envs.pusht import GREEN_POSE, PushT
from jepa_wm.envs.reach_experts import push_expert
from jepa_wm.envs.reach_play import start_states as reach_starts
from jepa_wm.envs.rendering import LinearResize, PushTRenderer
from jepa_wm.envs.shapes import BLOCK_NAMES, make_block, place_polygons
from jepa_wm.envs.starts import draw_state
from jepa_wm.envs.wall_play import start_states as wall_starts
from jepa_wm.envs.wall_play import wall_expert
from jepa_wm.envs.wall_worlds import Layout

CONF = files("jepa_wm.conf").joinpath("env")
NAMES = sorted(entry.name[:-5] for entry in CONF.iterdir() if entry.name.endswith(".yaml"))
NAMES.remove("recorded")  # actions move nothing there: tests/test_recorded.py
GOLDEN = Path(__file__).parent / "golden" / "pusht.npz"
START = np.array([100, 200, 256, 300, 0.3, 0, 0], dtype=float)
GOAL = np.array([400, 100, 256, 256, np.pi / 4, 0, 0])
ID = "jepa_wm.envs.pusht:jepa_wm/PushT-v0"


def conf_env(name, **changes):
    return instantiate(OmegaConf.merge(OmegaConf.load(str(CONF.joinpath(f"{name}.yaml"))), changes))


@pytest.fixture(scope="module")
def golden():
    return np.load(GOLDEN)


def random_states(count, seed, low=50.0, high=450.0):
    rng = np.random.default_rng(seed)
    places = rng.uniform(low, high, (count, 4))
    return np.concatenate([places, rng.uniform(-7, 7, (count, 1)), np.zeros((count, 2))], axis=1)


def pushing_actions(rng, state):
    """Aim at a random point near the block: a relative action that makes contact soon."""
    return np.clip((state[2:4] + rng.normal(0, 40, 2) - state[:2]) / 100, -1, 1)


def random_arm_states(count, seed):
    return reach_starts([np.random.default_rng([seed, row]) for row in range(count)])


def wrapped_states(count, seed):
    states = random_states(count, seed)
    states[:, 4] %= 2 * np.pi
    return states


def reaching_action(rng, state):
    return rng.uniform(0, 0.04, 7).astype(np.float32)


def pushing_the_block_away(rng, state):
    goal = np.append(state[:7], [0.5, 0.0, 0.0])
    return push_expert(state[None], goal[None])[0]


def random_places(count, seed):
    return np.random.default_rng(seed).uniform(0, 224, (count, 2))


def walking_to_a_corner(rng, state):
    return np.clip((30 - state) / 5 + rng.normal(0, 0.3, 2), -1, 1).astype(np.float32)


def random_dots(count, seed):
    return wall_starts([np.random.default_rng([seed, row]) for row in range(count)], Layout())


def walking_to_the_door(rng, state):
    return wall_expert(state[None], np.array([[32.0, 30.0]]))[0]


def random_balls(count, seed):
    return maze_starts([np.random.default_rng([seed, row]) for row in range(count)], MazeMap())


def rolling_round_the_corner(rng, state):
    return maze_expert(state[None], np.array([[1.8, 2.8]]))[0]


# what the tests below need to know of an environment: states (count, seed), and actions that take
# an episode from any start to somewhere its task calls another place
SAMPLES = {
    "pusht": (wrapped_states, pushing_actions),
    "reach": (random_arm_states, reaching_action),
    "push": (random_arm_states, pushing_the_block_away),
    "tworoom": (random_places, walking_to_a_corner),
    "wall": (random_dots, walking_to_the_door),
    "maze": (random_balls, rolling_round_the_corner),
}


def any_action(env, rng):
    return rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)


def test_every_environment_has_its_samples():
    assert sorted(SAMPLES) == NAMES


# --- every environment of conf/env ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("observation", ["pixels", "state", "dict"])
@pytest.mark.filterwarnings("error", "ignore:.*symmetric and normalized space")  # a unit is a unit
def test_passes_gymnasiums_check_without_a_warning(name, observation, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # the check opens the human window too
    check_env(conf_env(name, observation=observation).unwrapped)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_episode_other_seed_other_start(name):
    env = conf_env(name, observation="dict")
    rollouts = []
    for seed in (3, 3, 4):
        rng, (observation, _) = np.random.default_rng(0), env.reset(seed=seed)
        rows = [observation]
        rows += [env.step(any_action(env, rng))[0] for _ in range(5)]
        rollouts.append(rows)
    for first, second in zip(rollouts[0], rollouts[1], strict=True):
        assert all(np.array_equal(first[key], second[key]) for key in first)
    assert not np.array_equal(rollouts[0][0]["state"], rollouts[2][0]["state"])


@pytest.mark.parametrize("name", NAMES)
def test_starts_differ_from_reset_to_reset(name):
    env = conf_env(name, observation="state")
    env.reset(seed=0)
    starts = {env.reset()[0].tobytes() for _ in range(20)}
    assert len(starts) == 20


@pytest.mark.parametrize("name", NAMES)
def test_reset_gives_back_the_state_asked_for(name):
    env = conf_env(name, observation="state")
    for state in SAMPLES[name][0](20, seed=1):
        got, info = env.reset(options={"state": state})
        assert np.array_equal(got, state)
        assert np.array_equal(info["state"], state)


@pytest.mark.parametrize("name", NAMES)
def test_frames_own_their_memory_and_are_not_constant(name):
    env = conf_env(name)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    frame = env.step(any_action(env, rng))[0]
    kept = frame.copy()
    for _ in range(5):
        env.step(any_action(env, rng))
    assert np.array_equal(frame, kept)
    assert frame.flags["C_CONTIGUOUS"] and frame.flags["OWNDATA"]
    assert frame.std() > 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [64, 96, 255])
def test_render_size_and_dtype(name, size):
    env = conf_env(name, render_size=size)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (size, size, 3) and observation.dtype == np.uint8
    assert np.array_equal(env.render(), observation)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_observations_stay_in_their_space(name):
    env = conf_env(name, observation="dict", terminate=False)
    rng, (observation, _) = np.random.default_rng(0), env.reset(seed=0)
    for _ in range(200):
        assert env.observation_space.contains(observation)
        observation = env.step(any_action(env, rng))[0]
    assert env.observation_space["state"].dtype == observation["state"].dtype == np.float64


@pytest.mark.parametrize("name", NAMES)
def test_replaying_recorded_actions_reaches_the_goal(name):
    env = conf_env(name, observation="state", terminate=False)
    rng, (state, _) = np.random.default_rng(5), env.reset(seed=5)
    start, actions = state, []
    for _ in range(25):
        actions.append(SAMPLES[name][1](rng, state))
        state = env.step(actions[-1])[0]
    _, info = env.reset(options={"state": start, "goal_state": state})
    assert not info["is_success"]
    for action in actions:
        got, _, _, _, info = env.step(action)
    assert info["is_success"] and np.array_equal(got, state)


# --- vector environments -------------------------------------------------------------------------


def vector_rollout(kind, seeds):
    makers = [lambda: gym.make(ID, observation="state", terminate=False) for _ in seeds]
    envs = kind(makers, autoreset_mode=AutoresetMode.DISABLED)
    rng = np.random.default_rng(0)
    rows = [envs.reset(seed=list(seeds))[0]]
    for _ in range(10):
        action = np.tile(rng.uniform(-1, 1, 2), (len(seeds), 1)).astype(np.float32)
        observations, _, _, _, infos = envs.step(action)
        rows.append(observations.copy())
    envs.close()
    return np.array(rows), infos


def test_vector_environments_agree_with_one_environment():
    alone = [vector_rollout(SyncVectorEnv, [seed])[0][:, 0] for seed in (0, 1, 2)]
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        together, infos = vector_rollout(kind, (0, 1, 2))
        assert np.array_equal(together, np.stack(alone, axis=1))
        assert infos["is_success"].shape == (3,) and infos["state"].shape == (3, 7)


def test_success_at_the_last_step_is_seen_in_a_vector():
    makers = [lambda: gym.make(ID, observation="state", max_episode_steps=1)] * 2
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    goal = np.array([HOME_STATE[0] + 29.57, *HOME_STATE[1:]])
    envs.reset(options={"state": np.array(HOME_STATE), "goal_state": goal})
    action = np.array([[1, 0], [-1, 0]], np.float32)
    observations, _, terminated, truncated, infos = envs.step(action)
    assert terminated.tolist() == [True, False] and truncated.tolist() == [True, True]
    assert infos["is_success"].tolist() == [True, False]
    assert np.array_equal(infos["state"], observations)  # the terminal one, not a reset one


# --- physics -------------------------------------------------------------------------------------


def test_worlds_in_a_batch_equal_worlds_alone_to_the_bit():
    states, rng = random_states(24, seed=0), np.random.default_rng(1)
    batch, alone = PushTWorlds(24), [PushTWorlds(1, count_contacts=True) for _ in states]
    batch.set_states(states)
    for world, state in zip(alone, states, strict=True):
        world.set_states(state[None])
    touched = 0
    for _ in range(60):
        targets = batch.states()[:, 2:4] + rng.normal(0, 40, (24, 2))
        batch.step(targets)
        for world, target in zip(alone, targets, strict=True):
            world.step(target[None])
        touched += sum(int(world.contacts()[0]) for world in alone)
        together = np.concatenate([world.states() for world in alone])
        assert np.array_equal(batch.states(), together)
    assert touched > 500, touched


def test_agent_position_followed_in_numpy_is_chipmunks():
    worlds = PushTWorlds(5)
    worlds.set_states(random_states(5, seed=2))
    for target in np.random.default_rng(0).uniform(0, 512, (100, 5, 2)):
        worlds.step(target)
    chipmunk = np.array([world.agent.position for world in worlds._worlds])
    assert np.array_equal(worlds.states()[:, :2], chipmunk)


@pytest.mark.parametrize("name", ["T", "+", "square"])
def test_setting_states_forgets_what_was_before(name):
    """Worlds used four times over go on like new ones, to the bit, in contact and at walls."""
    used, rng = PushTWorlds(40, block_shape=name), np.random.default_rng(0)
    for cycle in range(4):
        states = random_states(40, seed=cycle, low=20, high=490)
        states[::2, :2] = states[::2, 2:4] + 20
        states[:, 5:] = rng.normal(0, 200, (40, 2))
        fresh = PushTWorlds(40, block_shape=name)
        for worlds in (used, fresh):
            worlds.set_states(states)
            assert np.array_equal(worlds.states(), states)
        for _ in range(25):
            targets = used.states()[:, 2:4] + rng.normal(0, 50, (40, 2))
            used.step(targets)
            fresh.step(targets)
        assert np.array_equal(used.states(), fresh.states())


def test_closed_form_share_of_a_commanded_step():
    env = PushT(observation="state", terminate=False)
    env.reset(options={"state": [400, 60, 150, 350, 0]})
    before = env.step([0.1, 0.0])[0]
    assert (before[0] - 400) / 10 == pytest.approx(0.295671786, abs=1e-9)
    for _ in range(30):
        after = env.step([0.1, 0.0])[0]
        share, before = (after[0] - before[0]) / 10, after
    assert share == pytest.approx(0.406931948, abs=1e-9)


def test_golden_contact_rollout():
    """Agent inside the block by 2.4 px at the start, circling target, one settling step first."""
    worlds = PushTWorlds(1)
    worlds.nudge(np.array([[180, 300, 256, 300, 0.3, 0, 0]], dtype=float))
    wanted = {
        0: (237.951670039, 300, 306.332908710, 323.971318951, 0.618445978),
        1: (298.567451148, 312.166224854, 348.696420528, 367.368538105, 1.015287290),
        4: (312.439370610, 387.207890338, 372.588240248, 436.858304706, 1.494637799),
        39: (342.785707585, 360.341869385, 373.671671472, 442.958901470, 1.531180046),
    }
    for t in range(40):
        worlds.step(np.array([[256 + 120 * np.cos(0.35 * t), 300 + 120 * np.sin(0.35 * t)]]))
        if t in wanted:
            assert worlds.states()[0, :5] == pytest.approx(wanted[t], abs=1e-8), t


def test_golden_relative_rollout_of_stable_worldmodel():
    env = PushT(observation="state", reset_mode="swm")
    state, _ = env.reset(options={"state": START, "goal_state": GOAL})
    assert np.array_equal(state, START)
    actions = [[2.3681, 2.0183], [1.3309, 1.6149], [0.2931, 0.9965], [-0.3282, 0.4917]]
    states = [env.step(action)[0] for action in [*actions, [-0.624, 0.0921]]]
    wanted = {
        0: (170.018035622, 259.675436551, 256, 300, 0.3, 886.019063776, 755.142213766),
        1: (
            *(235.889150068, 330.026248386, 303.507969706, 322.490678494, 0.654276593),
            *(492.147624088, 599.263106916),
        ),
        4: (
            *(230.621814541, 411.164639137, 321.939310110, 335.069435295, 0.473934525),
            *(-232.658972217, 33.269415554),
        ),
    }
    for t, row in wanted.items():
        assert states[t] == pytest.approx(row, abs=1e-8), t


def test_golden_resets_and_rollout_of_gym_pusht():
    env = PushT(action="absolute", observation="state", success="coverage", reset_mode="gym_pusht")
    state, _ = env.reset(options={"state": [0, 10, 20, 30, 1.0]})
    assert state[:5] == pytest.approx([0, 10, 57.866194316, 50.686396236, 1.0], abs=1e-8)
    state, _ = env.reset(seed=0)
    assert state[:5] == pytest.approx(
        [222, 97, 222.993827393, 381.599036236, 3.007999468], abs=1e-8
    )
    state, _ = env.reset(seed=42)
    block = [362.642505923, 206.605548985, 6.118948082]
    assert state[:5] == pytest.approx([152, 398, *block], abs=1e-8)
    rows = {
        (100, 100): (136.625067133, 309.889807798),
        (300, 350): (179.106988223, 288.376485901),
        (250, 400): (218.402432614, 326.090986482),
        (256, 256): (237.338089438, 317.836819289),
        (400, 200): (289.591914126, 275.064658747),
    }
    for action, agent in rows.items():
        assert env.step(action)[0][:5] == pytest.approx([*agent, *block], abs=1e-8)


def test_stored_rollout_of_stable_worldmodel_to_the_bit(golden):
    env = PushT(observation="state", reset_mode="swm", draw_contacts=True, render_mode="rgb_array")
    start, goal = np.array([330.0, 200, 256, 300, 0.3, 0, 0]), GOAL
    state, _ = env.reset(options={"state": start, "goal_state": goal})
    assert np.array_equal(state, golden["swm_states"][0])
    frames = dict(zip(golden["swm_frame_steps"], golden["swm_frames"], strict=True))
    for t, action in enumerate(golden["swm_actions"]):
        state, reward, _, _, info = env.step(action)
        assert np.abs(state - golden["swm_states"][t + 1]).max() < 1e-9, t
        assert reward == pytest.approx(golden["swm_rewards"][t], abs=1e-9)
        assert info["n_contacts"] == golden["swm_contacts"][t]
        if t in frames:
            assert np.array_equal(env.render(), frames[t]), t
    assert golden["swm_contacts"].max() >= 3


def test_stored_rollout_of_gym_pusht_with_coverage(golden):
    env = PushT(
        action="absolute",
        observation="state",
        success="coverage",
        reset_mode="gym_pusht",
        draw_contacts=True,
        render_size=96,
        render_mode="rgb_array",
    )
    env.reset(options={"state": [200, 180, 300, 200, 0.6]})
    for t, target in enumerate(golden["gp_targets"]):
        state, reward, _, _, info = env.step(target)
        assert np.abs(state[:5] - golden["gp_states"][t + 1]).max() < 1e-9, t
        assert info["coverage"] == pytest.approx(golden["gp_coverage"][t], abs=1e-12)
        assert reward == pytest.approx(golden["gp_rewards"][t], abs=1e-12)
        if t % 5 == 0:
            assert np.array_equal(env.render(), golden["gp_frames"][t // 5]), t
    assert np.ptp(golden["gp_coverage"]) > 0.1


def test_swm_reset_keeps_what_touched_at_the_goal():
    """A goal with agent and block in contact shifts the start that follows; exact resets do not."""
    touching = [180, 300, 256, 300, 0.3, 0, 0]
    state = {}
    for mode in ("swm", "exact"):
        env = PushT(observation="state", reset_mode=mode)
        state[mode], _ = env.reset(options={"state": START, "goal_state": touching})
    assert np.array_equal(state["exact"], START)
    assert np.abs(state["swm"] - START)[2:5].max() > 1e-3


@pytest.mark.parametrize("mode", ["swm", "dino_wm", "gym_pusht"])
def test_reference_resets_let_a_moving_agent_drift(mode):
    env = PushT(observation="state", reset_mode=mode)
    moving = np.array([100, 200, 256, 300, 0, 100, -200], dtype=float)
    state, _ = env.reset(options={"state": moving, "goal_state": GOAL})
    assert state[:2] == pytest.approx([101, 198], abs=1e-12)


@pytest.mark.parametrize("shape", BLOCK_NAMES)
def test_overlapping_start_does_not_explode(shape):
    env, worst = PushT(observation="state", block_shape=shape, terminate=False), 0.0
    for state in random_states(60, seed=3, low=150, high=350):
        state[:2] = state[2:4] + np.random.default_rng(0).normal(0, 30, 2)
        env.reset(options={"state": state, "goal_state": GOAL})
        moved = env.step([0, 0])[0][2:4] - state[2:4]
        worst = max(worst, float(np.abs(moved).max()) / 0.1)
    assert worst < 1000, f"{worst:.0f} px/s"


def test_starts_and_goals_are_drawn_free_and_unsolved():
    env = PushT(observation="state")
    for seed in range(500):
        state, info = env.reset(seed=seed)
        for row in (state, info["goal_state"]):
            assert metrics.clearance(env._shape, row) > -0.1
            assert metrics.is_block_inside(env._shape, row)
            assert 50 <= row[:2].min() and row[:2].max() <= 450
            assert 100 <= row[2:4].min() and row[2:4].max() <= 400
        assert not info["is_success"]


def test_one_option_given_leaves_the_other_drawn_alike():
    env = PushT(observation="state")
    state, info = env.reset(seed=7)
    other, given_start = env.reset(seed=7, options={"state": START})
    assert np.array_equal(other, START)
    assert np.array_equal(info["goal_state"], given_start["goal_state"])
    again, given_goal = env.reset(seed=7, options={"goal_state": GOAL})
    assert np.array_equal(again, state)
    assert np.array_equal(given_goal["goal_state"], GOAL)


def test_block_too_large_to_fit_is_refused():
    with pytest.raises(ValueError, match="no free start"):
        draw_state("exact", np.random.default_rng(0), make_block("T", 200.0))


REPLAY = """
import hashlib, numpy as np
from jepa_wm.envs.pusht import PushT
env = PushT(observation="state", terminate=False)
def run():
    state, _ = env.reset(options={"state": [330, 200, 256, 300, .3], "goal_state": [0] * 7})
    rng, digest = np.random.default_rng(0), hashlib.sha256(state.tobytes())
    for _ in range(300):
        aim = np.clip((state[2:4] + rng.normal(0, 40, 2) - state[:2]) / 100, -1, 1)
        state = env.step(aim)[0]
        digest.update(state.tobytes())
    return digest.hexdigest()
if __name__ == "__main__":
    print(run())
"""


def test_replay_is_exact_in_a_fresh_process_and_after_another_episode():
    scope = {"__name__": "replay"}
    exec(REPLAY, scope)
    first, second = scope["run"](), scope["run"]()
    command = [sys.executable, "-c", REPLAY]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first == second == fresh.stdout.strip()


@pytest.mark.parametrize("bad", [np.zeros((2, 6)), np.zeros((3, 7)), np.full((2, 7), np.nan)])
def test_worlds_refuse_bad_states(bad):
    with pytest.raises(ValueError, match="states must be"):
        PushTWorlds(2).set_states(bad)


def test_worlds_refuse_bad_arguments():
    with pytest.raises(ValueError, match="count=0"):
        PushTWorlds(0)
    with pytest.raises(ValueError, match="targets must be finite; row 1"):
        PushTWorlds(2).step(np.array([[0, 0], [np.inf, 0]]))
    with pytest.raises(ValueError, match="count_contacts"):
        PushTWorlds(1).contacts()


# --- blocks and metrics --------------------------------------------------------------------------


def test_default_block_is_the_published_t():
    block = make_block("T")
    sizes = [(right - left, bottom - top) for left, top, right, bottom in block.rectangles]
    assert sizes == [(120, 30), (30, 90)]
    assert block.moment == pytest.approx(3000) and block.area == pytest.approx(6300)
    assert block.centre_of_gravity == pytest.approx((0, 45))
    larger = make_block("T", 40.0)
    sizes = [(right - left, bottom - top) for left, top, right, bottom in larger.rectangles]
    assert sizes == [(160, 40), (40, 120)]


@pytest.mark.parametrize(("name", "scale"), [("circle", 30.0), ("o", 30.0), ("T", 0.0)])
def test_unknown_block_is_refused(name, scale):
    with pytest.raises(ValueError, match="block_s"):
        make_block(name, scale)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_symmetry_is_that_of_the_outline(name):
    """Turned by its symmetry about the outline's centre a block covers itself; by half, not."""
    block = make_block(name)
    corners = np.array([corner for part in block.polygons for corner in part])
    middle = (corners.min(0) + corners.max(0)) / 2

    def turned(angle):
        c, s = np.cos(angle), np.sin(angle)
        x, y = middle - np.array([[c, -s], [s, c]]) @ middle
        return metrics.coverage(block, (x, y, angle), (0, 0, 0))

    assert turned(block.symmetry_rad) == pytest.approx(1, abs=1e-9)
    assert turned(block.symmetry_rad / 2) < 0.99


def test_coverage_of_known_offsets():
    block, (x, y, angle) = make_block("T"), GREEN_POSE

    def at(dx=0.0, degrees=0.0):
        pose = (x + dx, y, angle + np.radians(degrees))
        return round(metrics.coverage(block, pose, GREEN_POSE), 3)

    assert [at(d) for d in (0, 1, 2, 3, 5, 20, 200)] == [1, 0.973, 0.947, 0.921, 0.869, 0.525, 0]
    assert [at(degrees=d) for d in (1, 2, 20)] == [0.970, 0.941, 0.482]


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_coverage_equals_counting_points(name):
    """Against a grid of points tested for membership, which knows nothing of clipping."""
    block, rng = make_block(name), np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(-200, 200, 0.5)] * 2), -1).reshape(-1, 2)

    def inside(pose):
        (dx, dy), (c, s) = (grid - pose[:2]).T, (np.cos(pose[2]), np.sin(pose[2]))
        u, v = c * dx + s * dy, c * dy - s * dx
        parts = [(u > a) & (u < r) & (v > b) & (v < d) for a, b, r, d in block.rectangles]
        return np.any(parts, axis=0)

    for _ in range(4):
        pose, goal = rng.uniform(-25, 25, 3) * (1, 1, 0.1), (0.0, 0.0, 0.4)
        counted = (inside(pose) & inside(goal)).sum() * 0.25 / block.area
        assert metrics.coverage(block, pose, goal) == pytest.approx(counted, abs=0.01)


def test_angle_error_wraps_and_knows_symmetry():
    def error(a, b, *symmetry):
        return float(metrics.angle_error([0, 0, 0, 0, a], [0, 0, 0, 0, b], *symmetry))

    assert error(0.1, 2 * np.pi - 0.1) == pytest.approx(0.2)
    assert error(0.1, 0.1 - 6 * np.pi) == pytest.approx(0)  # dino_wm calls any such pair near
    assert error(0.0, -4 * np.pi - np.pi / 2) == pytest.approx(np.pi / 2)
    assert error(0.1, 0.1 + np.pi / 2, np.pi / 2) == pytest.approx(0)
    assert error(0.1, 0.1 + np.pi / 2) == pytest.approx(np.pi / 2)


def test_pose_criterion_is_joint_over_agent_and_block():
    goal = np.zeros(7)
    rows = np.zeros((6, 7))
    rows[0, :4] = 9.9  # |.| = 19.8
    rows[1, :4] = 10.1
    rows[2, 0], rows[3, 2] = 25, 25
    rows[4, 4], rows[5, 4] = np.radians(19.9), np.radians(20.1)
    assert metrics.is_pose_reached(rows, goal).tolist() == [True, False, False, False, True, False]
    assert metrics.is_block_reached(rows, goal).tolist() == [True, True, True, False, True, False]


def test_info_agrees_with_the_metrics_and_is_complete():
    env = PushT(observation="state", terminate=False)
    rng, (state, info) = np.random.default_rng(0), env.reset(seed=1)
    for _ in range(20):
        goal = state + rng.normal(0, (12, 12, 8, 8, 0.3, 0, 0))
        env.set_goal(goal)
        state, reward, _, _, info = env.step(rng.uniform(-0.3, 0.3, 2))
        assert info["success_pose"] == info["is_success"] == metrics.is_pose_reached(state, goal)
        assert info["success_block"] == metrics.is_block_reached(state, goal)
        assert info["success_coverage"] == (info["coverage"] > 0.95)
        assert info["pos_err"] == metrics.position_error(state, goal)
        assert info["block_err"] == metrics.block_error(state, goal)
        assert info["angle_err"] == metrics.angle_error(state, goal)
        assert reward == pytest.approx(-np.linalg.norm(goal - state), abs=1e-9)
        assert np.array_equal(info["state"], state)
        assert np.array_equal(info["goal_state"], goal)
        assert np.array_equal(info["proprio"], state[[0, 1, 5, 6]])
        assert info["n_contacts"] >= 0


def test_info_holds_nothing_of_the_future():
    """Two episodes that part at step 3 have the same info up to then."""
    env, infos = PushT(observation="state"), []
    for last in ([1, 0], [0, 1]):
        rows = [env.reset(seed=0)[1]]
        rows += [env.step(action)[4] for action in ([0.5, 0.5], [0.2, 0.1], last)]
        infos.append([{key: np.asarray(row[key]).tobytes() for key in row} for row in rows])
    assert infos[0][:3] == infos[1][:3] and infos[0][3] != infos[1][3]


# --- actions, goals, options ---------------------------------------------------------------------


def test_relative_action_is_absolute_target_from_the_agent():
    relative = PushT(observation="state", terminate=False)
    absolute = PushT(observation="state", terminate=False, action="absolute")
    for env in (relative, absolute):
        env.reset(options={"state": START, "goal_state": GOAL})
    for action in np.random.default_rng(0).uniform(-1, 1, (20, 2)):
        target = absolute._worlds.states()[0, :2] + 100 * action
        assert np.array_equal(relative.step(action)[0], absolute.step(target)[0])


def test_action_beyond_the_box_is_not_clipped():
    env = PushT(observation="state")
    moved = []
    for action in (1.0, 1.5):
        env.reset(options={"state": START, "goal_state": GOAL})
        moved.append(env.step([action, 0])[0][0] - START[0])
    assert moved[1] == pytest.approx(1.5 * moved[0])


def test_walls_stop_the_block_and_not_the_agent():
    env = PushT(observation="state", terminate=False)
    env.reset(options={"state": [250, 200, 250, 300, 0], "goal_state": GOAL})
    for _ in range(40):
        state = env.step([0, 1])[0]
    assert state[1] > 512  # the agent left
    assert max(y for part in place_polygons(env._shape, state[2:5]) for _, y in part) < 506


@pytest.mark.parametrize("action", [[0.0], [0.0, np.nan], [[0.0, 0.0]]])
def test_bad_action_is_refused(action):
    env = PushT(observation="state")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="two finite numbers"):
        env.step(action)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": np.zeros(6)}, "state must be 7"),
        ({"goal_state": np.full(7, np.inf)}, "goal_state must be 7"),
        ({"goal": np.zeros(7)}, "state, goal_state"),
    ],
)
def test_bad_reset_option_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        PushT(observation="state").reset(options=options)


def test_unknown_choice_is_refused_with_the_list_of_choices():
    with pytest.raises(ValueError, match=r"observation='visual'.*pixels, state, dict") as error:
        PushT(observation="visual", draw_goal="green")
    assert "fixed, goal, none" in str(error.value)  # all faults at once
    with pytest.raises(ValueError, match="rgb_array"):
        PushT(render_mode="ansi")


def test_termination_follows_the_criterion_and_can_be_switched_off():
    near = [*HOME_STATE[:2], 300, 300, 0, 0, 0]
    for success, expected in (("pose", True), ("block", True), ("coverage", False)):
        for terminate in (True, False):
            env = PushT(observation="state", success=success, terminate=terminate)
            goal = [*HOME_STATE[:2], 305, 300, 0, 0, 0]
            env.reset(options={"state": near, "goal_state": goal})
            _, _, terminated, truncated, info = env.step([0, 0])
            assert info["is_success"] is expected
            assert terminated is (expected and terminate) and truncated is False


def test_coverage_task_has_the_published_goal_and_reward():
    env = PushT(observation="state", success="coverage", action="absolute")
    _, info = env.reset(seed=0)
    assert info["goal_state"][2:5] == pytest.approx(GREEN_POSE)
    env.reset(options={"state": [50, 50, *GREEN_POSE]})
    _, reward, terminated, _, info = env.step([50, 50])
    assert info["coverage"] == pytest.approx(1.0) and reward == 1.0 and terminated


def test_fixed_green_t_is_not_the_goal_and_goal_drawing_follows_it():
    fixed, follows, none = (PushT(draw_goal=kind) for kind in ("fixed", "goal", "none"))
    frames = {}
    for goal in ((400, 100, 150, 380, 1.0), (400, 100, 350, 150, 2.0)):
        for name, env in (("fixed", fixed), ("goal", follows), ("none", none)):
            frames[name, goal[2]], _ = env.reset(options={"state": START, "goal_state": goal})
    assert np.array_equal(frames["fixed", 150], frames["fixed", 350])
    assert not np.array_equal(frames["goal", 150], frames["goal", 350])
    assert not np.array_equal(frames["none", 150], frames["fixed", 150])
    assert np.array_equal(frames["none", 150], frames["none", 350])
    at_green = follows.reset(options={"state": START, "goal_state": [400, 100, *GREEN_POSE]})[0]
    assert np.array_equal(at_green, frames["fixed", 150])


def test_render_state_leaves_the_episode_alone():
    env = PushT(observation="pixels", render_mode="rgb_array")
    before, _ = env.reset(seed=0)
    goal = env.render_state(GOAL)
    assert np.array_equal(env.render(), before) and not np.array_equal(goal, before)
    shown, _ = env.reset(options={"state": GOAL, "goal_state": START})
    assert np.array_equal(goal, shown)
    assert np.array_equal(env.render_state(GOAL[:5]), shown)


def test_works_wrapped_and_state_is_reached_through_unwrapped():
    env = gym.make(ID, observation="state", render_mode="rgb_array")
    state, _ = env.reset(seed=0)
    assert env.unwrapped.render_state(state).shape == (224, 224, 3)
    assert np.array_equal(env.render(), env.unwrapped.render_state(state))
    assert env.spec.max_episode_steps is None


# --- rendering -----------------------------------------------------------------------------------


class ReferenceDrawing(pymunk.pygame_util.DrawOptions):
    """The references' debug drawing: lighter cores and edges of 2 px."""

    def draw_circle(self, pos, angle, radius, outline_color, fill_color):
        centre = pymunk.pygame_util.to_pygame(pos, self.surface)
        for colour, size in ((fill_color, radius), (lighter(fill_color), radius - 4)):
            pygame.draw.circle(self.surface, colour.as_int(), centre, round(size), 0)

    def draw_polygon(self, verts, radius, outline_color, fill_color):
        corners = [pymunk.pygame_util.to_pygame(v, self.surface) for v in verts]
        pygame.draw.polygon(self.surface, lighter(fill_color).as_int(), corners)
        for start, end in zip(verts, [*verts[1:], verts[0]], strict=True):
            self.draw_fat_segment(start, end, 2, fill_color, fill_color)


def lighter(colour):
    return SpaceDebugColor(*np.minimum(1.2 * np.float32(colour), np.float32(255)))


def reference_canvas(world, block, goal):
    """Draw a world with pymunk's own debug drawing, uint8 [512,512,3]."""
    surface = pygame.Surface((512, 512))
    surface.fill((255, 255, 255))
    if goal is not None:
        for outline in place_polygons(block, goal):
            corners = [pymunk.pygame_util.to_pygame(point, surface) for point in outline]
            pygame.draw.polygon(surface, pygame.Color("LightGreen"), corners)
    names = {
        pymunk.Segment: "LightGray",
        pymunk.Circle: "RoyalBlue",
        pymunk.Poly: "LightSlateGray",
    }
    for shape in world.space.shapes:
        shape.color = pygame.Color(names[type(shape)])
    world.space.debug_draw(ReferenceDrawing(surface))
    return pygame.surfarray.array3d(surface).swapaxes(0, 1)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_drawing_equals_pymunks_debug_drawing(name):
    """Random states, also off the canvas, on walls, overlapping and at whole numbers."""
    worlds = PushTWorlds(1, block_shape=name)
    renderer = PushTRenderer(224, worlds.shape, GREEN_POSE)
    states = random_states(60, seed=4, low=-60, high=570)
    states[::3] = states[::3].round()
    states[::5, :2] = states[::5, 2:4] + 20
    for state in states:
        worlds.set_states(state[None])
        wanted = reference_canvas(worlds._worlds[0], worlds.shape, GREEN_POSE)
        assert np.array_equal(renderer.canvas(state), wanted), state.tolist()


@pytest.mark.parametrize(
    ("start", "aim"), [((256, 400, 256, 300, 0.3, 0, 0), None), ((60, 60, 75, 70, 2.2, 0, 0), 50)]
)
def test_contact_marks_equal_pymunks(start, aim):
    """In the open, and squeezed into a corner, where overlapping marks blend in order."""
    worlds, rng, marked = PushTWorlds(1), np.random.default_rng(0), 0
    renderer = PushTRenderer(64, worlds.shape, None)
    for step in range(120):
        if step % 20 == 0:
            worlds.set_states(start + np.append(rng.uniform(-8, 8, 4), [0, 0, 0])[None])
        centre = worlds.states()[0, 2:4] if aim is None else np.full(2, aim)
        worlds.step(centre[None] + rng.normal(0, 40, (1, 2)))
        marks = worlds.contact_marks()
        wanted = reference_canvas(worlds._worlds[0], worlds.shape, None)
        assert np.array_equal(renderer.canvas(worlds.states()[0], marks), wanted)
        marked += not np.array_equal(renderer.canvas(worlds.states()[0]), wanted)
    assert marked > 30, marked


@pytest.mark.parametrize("size", [64, 96, 224, 255, 512, 600])
def test_redrawing_in_part_equals_redrawing_whole(size):
    block = make_block("T")
    renderer, resize = PushTRenderer(size, block, GREEN_POSE), LinearResize(512, size)
    for state in random_states(80, seed=size, low=-30, high=540):
        canvas = np.zeros((512, 512, 4), np.uint8)
        canvas[..., :3] = renderer.canvas(state)
        whole = resize(canvas, (0, size), (0, size))
        assert np.array_equal(renderer.render(state), whole), state
    far = renderer.render([1e12, -1e12, 1e9, 5000, 0])
    assert np.array_equal(far, renderer._small)


def test_resize_equals_opencvs(golden):
    noise = np.zeros((32, 32, 4), np.uint8)
    noise[..., :3] = golden["noise"]
    sizes = [int(key.split("_")[1]) for key in golden.files if key.startswith("resize_")]
    assert len(sizes) >= 8
    for size in sizes:
        ours = LinearResize(32, size)(noise, (0, size), (0, size))
        assert np.array_equal(ours, golden[f"resize_{size}"]), size


def test_colours_of_the_published_frame():
    renderer = PushTRenderer(224, make_block("T"), GREEN_POSE)
    colours, counts = np.unique(renderer.canvas(START).reshape(-1, 3), axis=0, return_counts=True)
    assert dict(zip(map(tuple, colours.tolist()), counts.tolist(), strict=True)) == {
        (255, 255, 255): 238_972,
        (211, 211, 211): 10_009,
        (144, 238, 144): 5_058,
        (143, 163, 184): 5_037,
        (119, 136, 153): 2_380,
        (78, 126, 255): 368,
        (65, 105, 225): 320,
    }
    # stable-worldmodel's own frame of this state (OpenCV 4.14 and 5.0) has these means
    mean = renderer.render(START).reshape(-1, 3).mean(0)
    assert mean == pytest.approx([247.1101, 249.5854, 248.6507], abs=5e-5)


def test_frame_size_below_one_is_refused():
    with pytest.raises(ValueError, match="render_size=0"):
        PushT(render_size=0)


def test_human_mode_opens_its_window_with_the_first_render(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = PushT(observation="state", render_mode="human")
    assert not pygame.display.get_init()
    env.reset(seed=0)
    env.step([0, 0])
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    assert np.array_equal(shown, env._renderer.canvas(env._state()))
    env.close()
    assert not pygame.display.get_init()


def test_import_is_silent_and_opens_nothing():
    code = (
        "import sys, os; before = dict(os.environ)\n"
        "import jepa_wm.envs.pusht\n"
        "import pygame\n"
        "assert dict(os.environ) == before\n"
        "assert not pygame.display.get_init()\n"
        "assert not {'torch', 'cv2', 'shapely'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr == ""
