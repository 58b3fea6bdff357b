"""Wall: moves, starts and pictures to the digit of DINO-WM's; the expert, play and commands."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jepa_wm import collect, plan
from jepa_wm.envs.wall import Wall
from jepa_wm.envs.wall_play import LONGEST, draw_task, play, start_states, wall_expert
from jepa_wm.envs.wall_rendering import WallRenderer, resize_weights
from jepa_wm.envs.wall_worlds import Layout, WallWorlds
from jepa_wm.launch import build, launch, preset_node
from jepa_wm.training.dataset import PlayDataset

START, GOAL = np.array([12.0, 50.0]), np.array([50.0, 12.0])
MOVED = Layout(wall_x=22, door_y=47)


@pytest.fixture(scope="module")
def golden():
    return np.load(Path(__file__).parent / "golden" / "wall.npz")


def moved(starts, actions, **options):
    worlds = WallWorlds(len(starts), **options)
    worlds.set_states(np.asarray(starts, float))
    worlds.act(np.asarray(actions, float))
    return worlds.states()


def starts(count, seed=0, layout=None):
    streams = [np.random.default_rng([seed, row]) for row in range(count)]
    return start_states(streams, layout or Layout())


def is_in_wall(states, layout):
    x, y = states[..., 0], states[..., 1]
    low, high = layout.door
    return (layout.left < x) & (x < layout.right) & ((y < low) | (y > high))


# --- moves ---------------------------------------------------------------------------------------


def test_moves_are_the_references_nan_for_nan(golden):
    got = moved(golden["starts"], golden["actions"], reference_nan=True)
    np.testing.assert_allclose(got, golden["ends"], rtol=0, atol=1e-5)
    assert np.isnan(golden["ends"]).any(1).sum() > 50
    bounced = np.abs(golden["ends"] - golden["starts"] - 2 * golden["actions"]).max(1) > 1e-3
    assert bounced.sum() > 500  # the table is of walls, not of free floor


def test_a_dot_that_is_lost_goes_where_the_references_goes(golden):
    worlds, seen = WallWorlds(1, reference_nan=True), []
    worlds.set_states(np.array([[20.0, 57.0]]))
    for action in golden["losing"]:
        worlds.act(action[None])
        seen.append(worlds.states()[0])
    assert np.isnan(seen).any(0).tolist() == [True, True]
    np.testing.assert_allclose(np.array(seen), golden["lost"], rtol=0, atol=1e-5)


def test_only_moves_that_divide_by_zero_differ_from_the_reference(golden):
    start, action, end = (golden[name] for name in ("starts", "actions", "ends"))
    got = moved(start, action)
    assert np.isfinite(got).all()
    differ = ~np.isclose(got, end, rtol=0, atol=1e-5).all(1)
    straight = (action == 0).any(1)
    assert differ.sum() > 50 and not (differ & ~straight).any()
    low, high = Layout().door
    passed = differ & np.isfinite(end).all(1)  # straight through the edge of the door
    assert passed.any() and is_in_wall(end[passed], Layout()).all()
    assert (low < got[passed][:, 1]).all() and (got[passed][:, 1] < high).all()


@pytest.mark.parametrize(
    ("start", "action", "end"),
    [
        ((20, 59), (0, 1), (20.5, 59.5)),  # the border, straight on
        ((20, 5), (0, -1), (20.5, 4.5)),
        ((28, 50), (1, 0), (28.5, 50.5)),  # the wall, straight on
        ((37, 10), (-1.5, 0), (35.5, 10.5)),
        ((28, 30), (1, 0), (30, 30)),  # the door
        ((32, 33), (0, 1), (32.5, 33.5)),  # its edges, from within
        ((32, 27), (0, -1), (32.5, 26.5)),
        ((4, 20), (0, 1), (4.3, 20.5)),  # along a wall that is touched
        ((20, 60), (0, 0), (20.5, 59.7)),
        ((20, 20), (0, 0), (20, 20)),
        ((59, 59), (1, 2), (59.7, 59.5)),  # a corner: off the nearer wall, and off the other
        ((59, 59), (2, 1), (59.5, 59.7)),
        ((58, 20), (30, 0), (59.5, 20.5)),  # however far
    ],
)
def test_golden_moves(start, action, end):
    assert moved([start], [action])[0] == pytest.approx(end, abs=1e-9)


def test_no_move_inside_the_box_ever_ends_in_a_wall():
    rng, worlds, layout = np.random.default_rng(0), WallWorlds(500), Layout()
    states = starts(500)
    states[::2] = rng.uniform([27, 26.1], [37, 33.9], (250, 2))
    worlds.set_states(states)
    for _ in range(60):
        actions = rng.uniform(-1.8, 1.8, (500, 2))
        actions[rng.random((500, 2)) < 0.2] = 0
        worlds.act(actions)
        now = worlds.states()
        assert not is_in_wall(now, layout).any()
        assert (now > 4).all() and (now < 60).all()


def test_worlds_in_a_batch_equal_worlds_alone_to_the_bit():
    states, rng = starts(20, seed=3), np.random.default_rng(1)
    actions = rng.uniform(-1.8, 1.8, (20, 2))
    alone = [moved(states[row, None], actions[row, None]) for row in range(20)]
    assert np.array_equal(moved(states, actions), np.concatenate(alone))


# --- starts and pictures -------------------------------------------------------------------------


def test_starts_and_goals_are_the_references_for_its_seeds(golden):
    ours = [draw_task(np.random.RandomState(seed), Layout()) for seed in range(50)]
    np.testing.assert_allclose(np.array(ours), golden["drawn"], rtol=0, atol=1e-12)


def test_small_pictures_are_the_references_and_large_ones_its_own_rounded(golden):
    renderer = WallRenderer(224, Layout())
    for index, place in enumerate(golden["shown"]):
        assert np.array_equal(renderer.draw(place).transpose(2, 0, 1), golden["small"][index])
        frame = renderer.render(place)
        assert np.abs(frame[100].T - golden["large_rows"][index]).max() <= 0.5
        assert frame.mean((0, 1)) == pytest.approx(golden["large_mean"][index], abs=0.05)


@pytest.mark.parametrize("size", [16, 64, 65, 224])
def test_resize_is_torchs(size):
    image = np.random.default_rng(0).uniform(0, 255, (65, 65))
    wanted = F.interpolate(
        torch.from_numpy(image)[None, None], (size, size), mode="bilinear", antialias=True
    )
    weights = resize_weights(65, size)
    assert np.abs(weights @ image @ weights.T - wanted[0, 0].numpy()).max() < 1e-9


def test_a_dot_that_is_nowhere_is_not_drawn():
    renderer = WallRenderer(64, Layout())
    empty, seen = renderer.render(np.array([np.nan, 4.3])), renderer.render(START)
    assert (empty[..., 0] == empty[..., 1]).all() and not np.array_equal(empty, seen)


def test_the_picture_and_the_world_follow_the_layout():
    env = Wall(wall_x=MOVED.wall_x, door_y=MOVED.door_y, observation="state", render_size=65)
    frame = env.render_state([50, 10])
    assert (frame[47, 20:25] == 255).all() and (frame[30, 19:26] == 0).all()
    env.reset(options={"state": [18, 30], "goal_state": GOAL})
    assert env.step([1, 0])[0] == pytest.approx([18.5, 30.5])


def test_the_goal_is_marked_on_request():
    plain, marked = (Wall(draw_goal=how).reset(seed=0)[0] for how in ("none", "goal"))
    green = (marked[..., 1].astype(int) - marked[..., 0]).max()
    assert green > 150 and not np.array_equal(plain, marked)


# --- episodes ------------------------------------------------------------------------------------


def test_episodes_start_in_opposite_rooms_either_way_round():
    env, from_left = Wall(observation="state"), 0
    for seed in range(100):
        state, info = env.reset(seed=seed)
        assert (state[0] < 29) != (info["goal_state"][0] < 29) and not info["is_success"]
        from_left += state[0] < 29
    assert 30 < from_left < 70


def test_one_option_given_leaves_the_other_drawn_alike():
    env = Wall(observation="state")
    state, info = env.reset(seed=7)
    other, given_start = env.reset(seed=7, options={"state": START})
    assert np.array_equal(other, START)
    assert np.array_equal(info["goal_state"], given_start["goal_state"])
    again, given_goal = env.reset(seed=7, options={"goal_state": GOAL})
    assert np.array_equal(again, state) and np.array_equal(given_goal["goal_state"], GOAL)


def test_a_start_given_at_the_drawn_goal_gets_another_goal():
    env = Wall(observation="state")
    goal = env.reset(seed=3)[1]["goal_state"]
    assert not env.reset(seed=3, options={"state": goal})[1]["is_success"]


@pytest.mark.parametrize("terminate", [True, False])
def test_success_is_nearer_than_four_and_a_half_pixels(terminate):
    env = Wall(observation="dict", terminate=terminate)
    env.reset(options={"state": [10, 20], "goal_state": [10, 25.5]})
    seen, reward, ended, _, info = env.step([0, 0.5])  # 4.5 px from it
    assert (info["is_success"], ended, reward) == (False, False, -4.5)
    seen, reward, ended, truncated, info = env.step([0, 0.01])
    assert info["is_success"] and ended is terminate and not truncated
    assert info["pos_err"] == pytest.approx(4.48) and reward == -info["pos_err"]
    assert np.array_equal(info["state"], seen["state"])
    assert np.array_equal(info["proprio"], seen["proprio"]) and seen["proprio"].dtype == np.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Wall(observation="rgb"), "observation='rgb'"),
        (lambda: Wall(draw_goal="fixed"), "draw_goal='fixed' is unknown; use one of goal, none"),
        (lambda: Wall(render_size=0), "render_size=0 must be at least 1"),
        (lambda: Wall(render_mode="ansi"), "render_mode='ansi'"),
        (lambda: Wall(wall_x=5), "wall_x=5 must be 14 to 50 px"),
        (lambda: Wall(door_y=60), "door_y=60 must be 9 to 55 px"),
        (lambda: Wall().reset(options={"start": START}), "unknown reset options"),
        (lambda: Wall().reset(options={"state": [1, 2, 3]}), "state must be 2 finite numbers"),
        (lambda: Wall().reset(options={"state": [2, 30]}), "must be between 4 and 60 px"),
        (lambda: Wall().reset(options={"state": [32, 40]}), "is in the wall; its door is y 26 to"),
        (lambda: Wall().reset(options={"goal_state": [np.inf, 0]}), "goal_state must be"),
        (lambda: Wall().step(np.zeros(3)), "action must be two finite numbers"),
        (lambda: WallWorlds(0), "count=0"),
        (lambda: WallWorlds(2).set_states(np.zeros((2, 3))), "states must be finite [2, 2]"),
    ],
)
def test_refusals_say_what_was_wrong(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


# --- the expert and the play ---------------------------------------------------------------------


def test_golden_path_through_the_door():
    """Down to the door's height, through it, and up to the goal, 3.6 px a step."""
    states, goal = [START], GOAL
    while np.linalg.norm(states[-1] - goal) >= 4.5:
        states.append(moved(states[-1][None], wall_expert(states[-1][None], goal[None]))[0])
    assert len(states) == 16
    rows = {7: (27, 30), 8: (30.6, 30), 10: (37, 30), 15: (47.5386, 15.4081)}
    for step, place in rows.items():
        assert states[step] == pytest.approx(place, abs=1e-3), step


@pytest.mark.parametrize("layout", [Layout(), MOVED])
def test_the_expert_reaches_any_goal(layout):
    """From anywhere to anywhere, the door included, without touching a wall."""
    state, goal = starts(600, 1, layout), starts(600, 2, layout)
    state[:60, 0], goal[60:120, 0] = layout.wall_x, layout.wall_x + 2
    state[:60, 1] = goal[60:120, 1] = layout.door_y + np.linspace(-3.9, 3.9, 60)
    worlds = WallWorlds(600, wall_x=layout.wall_x, door_y=layout.door_y)
    worlds.set_states(state)
    for _ in range(40):
        actions = wall_expert(worlds.states(), goal, layout)
        assert np.linalg.norm(actions, axis=1).max() <= LONGEST + 1e-6
        wanted = worlds.states() + 2 * actions.astype(float)
        worlds.act(actions)
        assert np.array_equal(worlds.states(), wanted)
    assert np.abs(worlds.states() - goal).max() < 1e-3


def test_play_is_the_same_however_it_is_cut_up():
    whole = play(3, 6, 15, jitter=0.3)
    parts = [play(3, 2, 15, first=first, jitter=0.3) for first in (0, 2, 4)]
    assert np.array_equal(whole.states, np.concatenate([part.states for part in parts]))
    assert np.array_equal(whole.actions, np.concatenate([part.actions for part in parts]))
    assert not np.array_equal(whole.states, play(4, 6, 15, jitter=0.3).states)


def test_play_is_what_the_worlds_do():
    recorded, space = play(0, 5, 20, jitter=0.5), Wall().action_space
    for step in range(20):
        assert all(space.contains(action) for action in recorded.actions[:, step])
        now = moved(recorded.states[:, step], recorded.actions[:, step])
        assert np.array_equal(now, recorded.states[:, step + 1])


def test_about_half_of_the_segments_of_play_cross_the_wall():
    side = play(0, 200, 100, jitter=0.3).states[..., 0] > 32
    share = (side[:, :-25] != side[:, 25:]).mean()
    assert 0.4 < share < 0.6, share


def test_steps_are_as_long_as_the_published_ones():
    """Mean 1 and standard deviation 0.35, the cut normal's, where nothing is jitter."""
    lengths = np.linalg.norm(play(0, 200, 50).actions, axis=2)
    assert lengths.mean() == pytest.approx(1.0, abs=0.02)
    assert lengths.std() == pytest.approx(0.352, abs=0.01)
    assert 0.2 - 1e-6 <= lengths.min() and lengths.max() <= LONGEST + 1e-6


def test_the_tasks_action_statistics_are_the_plays():
    action = preset_node("task", "wall")["action"]
    actions = play(0, 500, 100, jitter=0.3).actions
    assert actions.mean((0, 1)) == pytest.approx(action["mean"], abs=0.02)
    assert actions.std((0, 1)) == pytest.approx(action["std"], abs=0.02)


def test_the_simulator_minimises_the_way_through_the_door():
    place = [[28.0, 50.0], [36.0, 50.0], [28.0, 30.0]]
    way = build(preset_node("task", "wall")["distance"], "task.distance")(torch.tensor(place[1:2]))
    costs = way(torch.tensor(place, dtype=torch.float64)[None, :, None], torch.zeros(1, 3, 1, 10))
    far, near = 2 * np.hypot(4, 18), np.hypot(4, 2) + np.hypot(4, 18)
    assert costs[0].tolist() == pytest.approx([(far / 4.5) ** 2, 0, (near / 4.5) ** 2])


# --- the commands --------------------------------------------------------------------------------


def run(main, name, arguments, monkeypatch, capsys, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    launch(main, name)
    return capsys.readouterr().out


def test_the_simulator_plans_through_the_door_wherever_it_is(monkeypatch, capsys, tmp_path):
    given = ["env=wall", "model=simulator", "episodes=4", "num_envs=4", "video=none", "threads=1",
             "planner.num_samples=48", "planner.num_elites=6", "planner.iterations=4",
             "output=json", "env.wall_x=22", "env.door_y=47"]  # fmt: skip
    document = json.loads(run(plan.main, "plan", given, monkeypatch, capsys, tmp_path))
    rates = {name: found["rate"] for name, found in document["policies"].items()}
    assert rates["replay"] == 1 and rates["no-op"] == 0, rates
    assert rates["planner"] >= 0.75, rates


def test_collected_play_is_the_environments(monkeypatch, capsys, tmp_path):
    given = ["env=wall", "out=play", "episodes=3", "steps=10", "seed=5"]
    run(collect.main, "collect", given, monkeypatch, capsys, tmp_path)
    data, recorded = PlayDataset(tmp_path / "play"), play(5, 3, 10, jitter=0.3)
    assert data.info.env == "jepa_wm/Wall-v0"
    assert (data.info.block, data.info.action_dim, data.info.state_dim) == (5, 2, 2)
    assert np.array_equal(data.states, recorded.states[:, ::5].astype(np.float32))
    frame = Wall().render_state(recorded.states[2, 5])
    assert np.array_equal(data.frames[2, 1], collect.shrink(frame[None], 64)[0])
    assert data.info.targets == preset_node("task", "wall")["targets"]
