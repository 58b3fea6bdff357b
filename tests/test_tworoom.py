"""TwoRoom: the reference's transitions and pictures, the expert, the play, the environment."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from jepa_wm.control.interfaces import Context
from jepa_wm.envs.tworoom import TOLERANCE, TwoRoom, draw_place
from jepa_wm.envs.tworoom_play import expert, play, waypoints
from jepa_wm.envs.tworoom_rendering import TwoRoomRenderer
from jepa_wm.envs.tworoom_worlds import HIGH, LOW, MIDDLE, Rooms, TwoRoomWorlds
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.setup import load_brain
from jepa_wm.launch import build

GOLDEN = Path(__file__).parent / "golden" / "tworoom.npz"
ID = "jepa_wm.envs.tworoom:jepa_wm/TwoRoom-v0"
VARIANTS = [
    Rooms(),
    Rooms(speed=10.5, thickness=41, doors=((49, 8),)),
    Rooms(speed=3.3, wall="horizontal", thickness=15, doors=((100, 1), (40, 12), (200, 21))),
]


@pytest.fixture(scope="module")
def golden():
    return np.load(GOLDEN)


def places(count, rooms, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([draw_place(rng, rooms) for _ in range(count)])


# --- as the reference ----------------------------------------------------------------------------


def test_the_golden_path():
    env = TwoRoom(observation="state", terminate=False, render_mode="rgb_array")
    env.reset(options={"state": [60, 112], "goal_state": [164, 112]})
    right = [env.step([1, 0])[0][0] for _ in range(9)]
    assert right == [65, 70, 75, 80, 85, 90, 95, 100, 99.5]  # 100 touches nothing, 105 does
    up = [env.step([0, -1])[0].tolist() for _ in range(12)][-1]
    assert up == [99.5, 52]
    through = [env.step([1, 0])[0].tolist() for _ in range(10)][-1]
    assert through == [149.5, 52]
    assert env.step([0.3, 1.7])[0].tolist() == [151, 57]  # 1.7 is cut to 1
    assert env.render().mean((0, 1)) == pytest.approx([226.6486, 225.0108, 225.0108], abs=2e-4)


@pytest.mark.parametrize("index", range(3))
def test_transitions_are_the_references_to_the_bit(golden, index):
    rooms, before = VARIANTS[index], golden[f"places_{index}"]
    after = rooms.step(before, golden[f"actions_{index}"])
    assert after.dtype == np.float32
    assert np.array_equal(after, golden[f"after_{index}"])
    pushed = after[:, rooms.across] == np.float32(MIDDLE - rooms.reach - 0.5)
    crossed = (after[:, rooms.across] < MIDDLE) != (before[:, rooms.across] < MIDDLE)
    assert pushed.sum() > 5 and (crossed.sum() > 0 or rooms.thickness == 41)


@pytest.mark.parametrize("index", range(3))
def test_pictures_are_the_references(golden, index):
    """But for a value in some ten thousand, where truncation turns on an exponential's last bit."""
    renderer, at = TwoRoomRenderer(224, VARIANTS[index]), golden[f"places_{index}"]
    for place, goal, frame in zip(at, (None, at[9]), golden[f"frames_{index}"], strict=False):
        renderer.set_goal(goal)
        found = renderer.render(place)
        differs = found != frame
        assert differs.sum() <= 15, differs.sum()
        assert np.abs(found.astype(int) - frame)[differs].max(initial=0) <= 1


def test_the_wall_is_tested_for_the_side_a_step_began_on():
    """Out of the opening sideways, a dot is set back to the room its step began in."""
    rooms = Rooms()
    inside = np.array([[111.0, 62.0], [112.0, 62.0]])
    down = rooms.step(inside, np.array([[0.0, 1.0]] * 2))
    assert down.tolist() == [[99.5, 67.0], [124.5, 67.0]]


# --- the environment -----------------------------------------------------------------------------


def test_discrete_actions_are_the_corners_of_the_cross():
    env = gym.make(ID, action="discrete", observation="state")
    check_env(env.unwrapped, skip_render_check=True)
    moves = []
    for action in range(env.action_space.n):
        env.reset(options={"state": [60, 112], "goal_state": [164, 112]})
        moves.append((env.step(action)[0] - [60, 112]).tolist())
    assert moves == [[0, 0], [5, 0], [0, 5], [-5, 0], [0, -5]]
    for wrong in (5, -1, 0.5, [1]):
        with pytest.raises(ValueError, match="action must be 0 to 4"):
            env.unwrapped.step(wrong)


def test_the_references_vector():
    env = TwoRoom(observation="vector", rooms={"doors": [[49, 14], [150, 9]]})
    check_env(env, skip_render_check=True)
    got, _ = env.reset(options={"state": [60, 112], "goal_state": [164, 100]})
    assert got.tolist() == [60, 112, 164, 100, 112, 49, 112, 150, 0, 0]
    env = TwoRoom(observation="vector", rooms={"wall": "horizontal"})
    got, _ = env.reset(options={"state": [60, 112], "goal_state": [164, 100]})
    assert got.tolist()[4:] == [49, 112, 0, 0, 0, 0]


def test_success_is_near_the_goal_and_ends_the_episode():
    env = TwoRoom(observation="state")
    _, info = env.reset(options={"state": [60.0, 112.0], "goal_state": [81.0, 112.0]})
    assert info["pos_err"] == 21 and not info["is_success"]
    _, reward, terminated, _, info = env.step([1.0, 0.0])  # 16 px away: not below 16
    assert (reward, terminated, info["pos_err"]) == (0.0, False, TOLERANCE)
    _, _, terminated, _, info = env.step([0.1, 0.0])
    assert terminated and info["success_reach"] and info["pos_err"] == 15.5


@pytest.mark.parametrize("wall", ["vertical", "horizontal"])
def test_drawn_starts_and_goals_are_clear_and_apart(wall):
    env = TwoRoom(observation="state", goal_room="other", rooms={"wall": wall})
    across = Rooms(wall=wall).across
    for seed in range(60):
        _, info = env.reset(seed=seed)
        start, goal = info["state"], info["goal_state"]
        assert info["pos_err"] >= TOLERANCE
        assert (start[across] < MIDDLE) != (goal[across] < MIDDLE)
        for place in (start, goal):
            assert place.min() >= LOW and place.max() <= HIGH
            assert abs(place[across] - MIDDLE) > 12
    given = env.reset(seed=1, options={"goal_state": info["goal_state"]})[1]
    assert np.array_equal(given["state"], env.reset(seed=1)[1]["state"])  # drawn as without it


def test_the_goal_is_drawn_on_demand():
    plain, marked = (TwoRoom(draw_goal=kind, render_mode="rgb_array") for kind in ("none", "goal"))
    options = {"state": [60, 112], "goal_state": [164, 60]}
    frames = [env.reset(options=options)[0] for env in (plain, marked)]
    assert frames[0][60, 164].tolist() == [255, 255, 255]
    assert frames[1][60, 164].tolist() == [0, 255, 0]
    assert frames[1][112, 60].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("rooms", "words"),
    [
        ({"speed": 11}, "speed=11 must be 1.75 to 10.5"),
        ({"thickness": 3, "wall": "both"}, "thickness=3.*wall='both'"),
        ({"doors": []}, "must be 1 to 3"),
        ({"doors": [[300, 14]]}, "0 to 223"),
        ({"door": [[49, 14]]}, r"no \['door'\]; use speed, wall"),
    ],
)
def test_impossible_rooms_are_refused(rooms, words):
    with pytest.raises(ValueError, match=words):
        TwoRoom(rooms=rooms)


@pytest.mark.parametrize("state", [[1, 2, 3], [-1, 5], [float("nan"), 5], [300, 5]])
def test_impossible_places_are_refused(state):
    with pytest.raises(ValueError, match="two numbers, 0 to 224 px"):
        TwoRoom().reset(options={"state": state})


# --- worlds, expert, play ------------------------------------------------------------------------


@pytest.mark.parametrize("rooms", VARIANTS)
def test_worlds_are_environments_side_by_side(rooms):
    starts, rng = places(8, rooms), np.random.default_rng(1)
    worlds, envs = TwoRoomWorlds(8, rooms), []
    worlds.set_states(starts)
    for start in starts:
        envs.append(TwoRoom(observation="state", terminate=False, rooms=rooms))
        envs[-1].reset(options={"state": start})
    for _ in range(40):
        actions = rng.normal(0.3, 1, (8, 2)).astype(np.float32)
        worlds.act(actions)
        alone = [env.step(action)[0] for env, action in zip(envs, actions, strict=True)]
        assert np.array_equal(worlds.states(), np.stack(alone))


@pytest.mark.parametrize("index", range(3))
def test_the_expert_reaches_every_goal(index):
    rooms, count = VARIANTS[index], 400
    worlds, goals = TwoRoomWorlds(count, rooms), places(count, rooms, seed=2)
    goals[:20] = [MIDDLE, rooms.doors[-1][0]]  # standing in a door
    if rooms.across:
        goals[:20] = goals[:20, ::-1]
    worlds.set_states(places(count, rooms, seed=1))
    longest = 3 * 224 / rooms.speed
    for _ in range(int(longest)):
        actions = expert(worlds.states(), goals, rooms)
        assert np.abs(actions).max() <= 1
        worlds.act(actions)
    left = np.linalg.norm(worlds.states() - goals, axis=1)
    assert left.max() < 0.5, f"{(left > 0.5).sum()} not reached, e.g. {goals[left.argmax()]}"


def test_no_door_that_fits_is_one_line():
    rooms = Rooms(doors=((49, 5),))
    with pytest.raises(ValueError, match=r"no door .* 7.7 px or more half wide"):
        waypoints(places(1, rooms), places(1, rooms), rooms)


def test_half_of_the_segments_of_play_lead_through_the_door():
    recorded = play(5, 400, 100)
    side = recorded.states[..., 0] < MIDDLE
    assert 0.4 < (side[:, 25:] != side[:, :-25]).mean() < 0.6
    moved = np.linalg.norm(recorded.states[:, 25:] - recorded.states[:, :-25], axis=2)
    assert (moved > TOLERANCE).mean() > 0.9
    assert np.abs(recorded.actions).max() <= 1
    covered = np.histogram2d(*recorded.states.reshape(-1, 2).T, bins=8, range=[[21, 203]] * 2)[0]
    assert (covered > 0).mean() > 0.9  # all but what the wall takes


def test_play_is_what_the_worlds_do_and_its_episodes_are_their_seeds():
    whole, part = play(3, 6, 30, jitter=0.4), play(3, 2, 30, first=4, jitter=0.4)
    assert np.array_equal(whole.states[4:], part.states)
    assert np.array_equal(whole.actions[4:], part.actions)
    worlds = TwoRoomWorlds(6)
    worlds.set_states(whole.states[:, 0])
    for t in range(30):
        worlds.act(whole.actions[:, t])
        assert np.array_equal(worlds.states(), whole.states[:, t + 1])


def test_jitter_runs_into_walls_more_often():
    """Random commands show a model what borders do; deliberate walks hardly do."""

    def stopped(jitter):
        recorded = play(4, 200, 60, jitter=jitter)
        moved = np.diff(recorded.states, axis=1) / 5
        return (np.abs(moved - recorded.actions).max(-1) > 1e-3).mean()

    assert stopped(0.9) > 1.5 * stopped(0.0)


# --- planning ------------------------------------------------------------------------------------


def options(*overrides):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        return OmegaConf.to_container(compose("plan", overrides=list(overrides)), resolve=True)


@pytest.mark.parametrize("model", ["exact", "simulator"])
def test_models_of_the_rooms_follow_the_environments(model):
    """Faster, turned and with another door: what is planned with is what is played in."""
    given = ("env.rooms.speed=8.0", "env.rooms.wall=horizontal", "env.rooms.doors=[[150,12]]")
    found = options("env=tworoom", f"model={model}", *given)
    env = build(found["env"], "env").unwrapped
    brain = load_brain(found, env.action_space, torch.device("cpu"), torch.float32)
    start = torch.tensor([[[150.0, 90.0]]], dtype=torch.float64)
    actions = brain.codec.encode(np.tile([0.2, 1.0], (1, 4, 25, 1)).astype(np.float32))
    z = brain.model.rollout(Context(brain.model.preprocess(start), actions[:, 0, :0]), actions)
    env.reset(options={"state": start[0, 0].numpy(), "goal_state": [20, 20]})
    for _ in range(25):
        env.step(brain.codec.decode(actions)[0, 0, 0].numpy())
    assert np.allclose(z[0, 0, -1], env.step([0, 0])[4]["state"])
    goal = torch.tensor([[150.0, 140.0]], dtype=torch.float64)
    near = torch.tensor([[60.0, 95.0], [60.0, 129.0]])[None, :, None].double()
    beyond, beside = brain.objective(goal)(near, actions[:, :2])[0]
    assert beyond > beside  # through the door is further


def test_an_environment_without_an_exact_model_is_one_line():
    found = options("env=pusht", "model=exact")
    space = build(found["env"], "env").action_space
    with pytest.raises(ConfigError, match=r"model=exact: .*task.exact.*model=simulator"):
        load_brain(found, space, torch.device("cpu"), torch.float32)
