"""Maze: the ball's motion and contacts, the map, pictures, the expert, play and commands."""

import json
import sys

import numpy as np
import pytest

from jepa_wm import collect, plan
from jepa_wm.envs.maze import Maze
from jepa_wm.envs.maze_play import draw_place, maze_expert, play, start_states
from jepa_wm.envs.maze_rendering import BALL, FLOOR, MazeRenderer
from jepa_wm.envs.maze_worlds import LAYOUTS, MASS, RADIUS, MazeMap, MazeWorlds
from jepa_wm.launch import launch, preset_node
from jepa_wm.training.dataset import PlayDataset

START, GOAL = np.array([0.8, 0.8, 0, 0]), np.array([2.8, 0.8, 0, 0])
LOW, HIGH = 0.4, 3.2  # m, where the outer walls of ``u`` stop the ball


def pushed(states, actions, steps=1, **options):
    states = np.atleast_2d(np.asarray(states, float))
    worlds = MazeWorlds(len(states), **options)
    worlds.set_states(states)
    for _ in range(steps):
        worlds.act(np.broadcast_to(np.asarray(actions, float), (len(states), 2)))
    return worlds.states()


def starts(count, seed=0, layout="u"):
    streams = [np.random.default_rng([seed, row]) for row in range(count)]
    return start_states(streams, MazeMap(layout))


# --- motion --------------------------------------------------------------------------------------


def test_a_push_follows_the_damped_equation():
    """m v' = F a - v by implicit steps of 0.01 s; the exponential within their error."""
    action, kept = np.array([0.25, 0.5]), 1 / (1 + 0.01 / MASS)
    state = pushed([0.8, 0.8, 0, 0], action)[0]
    speeds = 100 * action * (1 - kept ** np.arange(1, 6)[:, None])
    assert state == pytest.approx([*(0.8 + 0.01 * speeds.sum(0)), *speeds[-1]], abs=1e-12)
    assert state[2:] == pytest.approx(100 * action * (1 - np.exp(-0.05 / MASS)), rel=0.002)


def test_a_ball_left_alone_slows_down_as_damping_says():
    state = pushed([0.8, 0.5, 0, 0.8], [0, 0], steps=20)[0]
    assert state[3] == pytest.approx(0.8 * (1 + 0.01 / MASS) ** -100)
    assert state[1] == pytest.approx(0.5 + 0.8 * MASS * (1 - np.exp(-1 / MASS)), abs=0.003)


def test_actions_and_speeds_are_cut():
    assert np.array_equal(pushed(START, [3, -9]), pushed(START, [1, -1]))
    fast, faster = pushed([[0.8, 1.5, 0, 5]], [0, 0]), pushed([[0.8, 1.5, 0, 50]], [0, 0])
    assert np.array_equal(fast, faster) and fast[0, 3] < 5


@pytest.mark.parametrize(
    ("start", "way", "axis", "stop"),
    [
        ((0.8, 0.8), (-1, 0), 0, LOW),
        ((0.8, 0.8), (1, 0), 0, 1.2),  # the bar in the middle
        ((2.8, 0.8), (-1, 0), 0, 2.4),
        ((0.8, 0.8), (0, -1), 1, LOW),
        ((1.8, 2.8), (0, 1), 1, HIGH),
        ((1.8, 2.8), (0, -1), 1, 2.4),
    ],
)
def test_walls_stop_the_ball_and_let_it_slide(start, way, axis, stop):
    slide = np.array(way, float)
    slide[1 - axis] = 0.1
    state = pushed([*start, 0, 0], slide, steps=8)[0]
    assert state[axis] == pytest.approx(stop, abs=1e-12) and state[2 + axis] == 0
    free = pushed([*start, 0, 0], slide - way, steps=8)[0]
    assert state[1 - axis] == free[1 - axis] and state[3 - axis] == free[3 - axis] > 0.5


def test_a_corner_of_the_room_stops_both():
    state = pushed([2.8, 2.8, 3, 3], [1, 1], steps=6)[0]
    assert state == pytest.approx([HIGH, HIGH, 0, 0], abs=1e-12)


def test_a_corner_of_the_wall_is_round_to_the_ball():
    """It stops what comes straight at it, and turns what comes from above along the tangent."""
    corner, out = np.array([1.3, 2.3]), np.array([-1, 1]) / np.sqrt(2)
    place = corner + RADIUS * out
    straight = pushed([*place, *-out], [0, 0])[0]
    assert straight == pytest.approx([*place, 0, 0], abs=1e-12)
    from_above = pushed([*place, 0, -1], [0, 0])[0]
    assert from_above[2:] == pytest.approx([-0.5, -0.5], abs=0.1)
    assert np.linalg.norm(from_above[:2] - corner) > RADIUS - 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_balls_never_sink_in_jump_through_or_gain_speed_at_walls(layout):
    worlds, rng, maze = MazeWorlds(400, layout=layout), np.random.default_rng(0), MazeMap(layout)
    states = starts(400, layout=layout)
    states[:, 2:] = rng.uniform(-5, 5, (400, 2))
    worlds.set_states(states)
    touching = 0
    for _ in range(60):
        before = worlds.states()
        actions = rng.uniform(-1, 1, (400, 2)) * (rng.random((400, 1)) < 0.7)
        worlds.act(actions)
        after = worlds.states()
        gap = maze.gaps(after[:, :2])[1]
        assert gap.min() > RADIUS - 1e-9
        touching += (gap < RADIUS + 1e-9).sum()
        here, there = maze.cells(before[:, :2]), maze.cells(after[:, :2])
        near = maze.next_cell[here, there] == there
        around = maze.next_cell[maze.next_cell[here, there], there] == there  # over two edges
        assert (near | around).all()
        idle = (actions == 0).all(1)
        speed = np.linalg.norm(np.clip(before[idle, 2:], -5, 5), axis=1)
        assert (np.linalg.norm(after[idle, 2:], axis=1) < speed + 1e-12).all()
    assert touching > 1000, touching


def test_seams_between_wall_tiles_are_not_felt():
    """Along the wall of the medium maze, where boxes meet, a ball that leans on it keeps going."""
    lean = pushed([0.6, 2.2, 0, 0], [0.5, 1], steps=9, layout="medium")[0]
    free = pushed([0.6, 1.8, 0, 0], [0.5, 0], steps=9, layout="medium")[0]
    assert lean[0] == free[0] > 1.6 and lean[2] == free[2] > 3  # the seam is at 1.3
    assert lean[1] == pytest.approx(2.2, abs=1e-12) and lean[3] == 0


def test_worlds_in_a_batch_equal_worlds_alone_to_the_bit():
    states, actions = starts(20, seed=3), np.random.default_rng(1).uniform(-1, 1, (20, 2))
    states[:, 2:] *= 8
    alone = [pushed(states[row], actions[row], steps=6) for row in range(20)]
    worlds = MazeWorlds(20)
    worlds.set_states(states)
    for _ in range(6):
        worlds.act(actions)
    assert np.array_equal(worlds.states(), np.concatenate(alone))


# --- the map -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_boxes_are_the_tiles(layout):
    maze, rows = MazeMap(layout), LAYOUTS[layout]
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            centre = np.array([[i - 0.2, j - 0.2]])
            covers = (maze.low < centre) & (centre < maze.high)
            assert covers.all(1).sum() == (tile == "#"), (i, j)
    tiles = sum(row.count("#") for row in rows)
    assert np.prod(maze.high - maze.low, axis=1).sum() == pytest.approx(tiles)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ways_lead_from_every_cell_to_every_other_and_none_is_shorter(layout):
    maze = MazeMap(layout)
    count = len(maze.centres)
    joined = np.abs(maze.centres[:, None] - maze.centres).sum(2) < 1.01
    reached, fewest = np.eye(count, dtype=bool), np.full((count, count), -1)
    here, goals = np.repeat(np.arange(count)[:, None], count, 1), np.arange(count)[None]
    for steps in range(count):
        fewest[reached & (fewest < 0)] = steps
        assert ((here == goals) == reached).all(), steps
        following = maze.next_cell[here, goals]
        assert joined[here, following].all()
        here, reached = following, reached @ joined
    assert fewest.min() == 0 and fewest.max() == {"u": 6, "medium": 11}[layout]


def test_starts_are_drawn_from_the_published_region():
    """x, y in [0.5, 3.1], and x <= 1.1 or x >= 2.5 or y >= 2.5."""
    places = np.array([draw_place(np.random.default_rng(seed), MazeMap()) for seed in range(800)])
    x, y = places.T
    assert places.min() >= 0.5 and places.max() <= 3.1
    assert ((x <= 1.1) | (x >= 2.5) | (y >= 2.5)).all()
    area = 0.6 * 2.6 * 2 + 1.4 * 0.6
    assert ((x > 1.1) & (x < 2.5)).mean() == pytest.approx(1.4 * 0.6 / area, abs=0.04)
    assert (x <= 1.1).mean() == pytest.approx(0.6 * 2.6 / area, abs=0.05)


# --- episodes ------------------------------------------------------------------------------------


def test_episodes_start_at_rest_and_not_solved():
    env = Maze(observation="state")
    for seed in range(100):
        state, info = env.reset(seed=seed)
        assert not info["is_success"] and (state[2:] == 0).all()
        assert np.linalg.norm(state[:2] - info["goal_state"][:2]) >= 0.5


def test_success_is_nearer_than_half_a_metre_whatever_the_speed():
    env = Maze(observation="dict")
    env.reset(options={"state": [0.8, 0.8, 0, 4.0], "goal_state": [0.8, 1.6, 9, 9]})
    seen, reward, ended, truncated, info = env.step([0, 0])
    assert info["pos_err"] > 0.5 and not ended and not info["is_success"]
    seen, reward, ended, truncated, info = env.step([0, 0])
    assert info["is_success"] and ended and not truncated and reward == -info["pos_err"]
    assert info["pos_err"] == pytest.approx(np.linalg.norm(seen["state"][:2] - [0.8, 1.6]))
    assert np.array_equal(info["proprio"], seen["state"].astype(np.float32))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Maze(layout="large"), "layout='large' is unknown; use one of u, medium"),
        (lambda: Maze(observation="rgb"), "observation='rgb'"),
        (lambda: Maze(render_size=0), "render_size=0"),
        (lambda: Maze().reset(options={"state": START[:2]}), "state must be 4 finite numbers"),
        (lambda: Maze().reset(options={"state": [0.35, 1, 0, 0]}), "not 0.1 m clear of the walls"),
        (lambda: Maze().reset(options={"state": [1.8, 1, 0, 0]}), "not 0.1 m clear of the walls"),
        (lambda: Maze().reset(options={"state": [9, 9, 0, 0]}), "not 0.1 m clear of the walls"),
        (lambda: Maze().reset(options={"state": [0.8, 1, 8, 0]}), "at most 7 m/s an axis"),
        (lambda: Maze().step([np.nan, 0]), "action must be two finite numbers"),
        (lambda: MazeWorlds(0), "count=0"),
        (lambda: MazeWorlds(2).set_states(np.zeros((2, 2))), "states must be finite [2, 4]"),
    ],
)
def test_refusals_say_what_was_wrong(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 224])
def test_pictures_tell_where_the_ball_is_between_pixels(size):
    """The centroid of what it changes, to a tenth of a pixel; y points up."""
    renderer, scale = MazeRenderer(size, MazeMap()), size / 3.4
    empty = renderer.render(np.array([9.0, 9.0])).astype(float)
    for place in np.random.default_rng(0).uniform(0.6, 1.0, (20, 2)):
        change = np.abs(renderer.render(place) - empty).sum(-1)
        area = change.sum() / np.subtract(FLOOR, BALL).sum()
        assert area == pytest.approx(np.pi * (RADIUS * scale) ** 2, rel=0.05)
        rows, columns = (np.indices(change.shape) + 0.5) * change / change.sum()
        seen = columns.sum() / scale + 0.1, 3.5 - rows.sum() / scale
        assert seen == pytest.approx(place, abs=0.1 / scale)


def test_velocity_is_not_seen_and_the_goal_is_on_request():
    plain, marked = Maze(), Maze(draw_goal="goal")
    assert np.array_equal(plain.render_state(START), plain.render_state([*START[:2], 3, -3]))
    frames = [env.reset(options={"state": START, "goal_state": GOAL})[0] for env in (plain, marked)]
    changed = (frames[0] != frames[1]).any(-1)
    assert 50 < changed.sum() < 300  # a ball's worth
    rows, columns = np.nonzero(changed)
    place = columns.mean() / 224 * 3.4 + 0.1, 3.5 - rows.mean() / 224 * 3.4
    assert place == pytest.approx((2.8, 0.8), abs=0.02)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_walls_are_drawn_where_they_are(layout):
    maze, size = MazeMap(layout), 340 if layout == "u" else 320
    frame = MazeRenderer(size, maze).render(np.array([99.0, 99.0]))
    low = maze.centres.min(0) - 0.7
    side = (maze.centres.max(0) + 0.7 - low).max()
    for place in np.random.default_rng(0).uniform(low, low + side, (300, 2)):
        column, row = ((place - low) / side * size).astype(int)
        is_wall = maze.gaps(place[None])[1][0] == 0
        if np.abs((place + 0.7) % 1 - 0.5).max() < 0.48:  # not on an edge
            assert (frame[size - 1 - row, column] == 255).all() != is_wall, place


# --- the expert and the play ---------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "steps"), [("u", 35), ("medium", 70)])
def test_the_expert_reaches_any_goal_and_stays(layout, steps):
    """Slowest of 2,000 measured: 28 steps in u, 52 in medium."""
    worlds, goals, maze = MazeWorlds(300, layout=layout), starts(300, 2, layout), MazeMap(layout)
    worlds.set_states(starts(300, 1, layout))
    for _ in range(steps):
        worlds.act(maze_expert(worlds.states(), goals, maze))
    left = np.linalg.norm(worlds.states()[:, :2] - goals[:, :2], axis=1)
    assert left.max() < 0.15, left.max()


def test_golden_path_round_the_bar():
    states = [START]
    while np.linalg.norm(states[-1][:2] - GOAL[:2]) >= 0.5:
        states.append(pushed(states[-1], maze_expert(states[-1][None], GOAL[None]))[0])
    path = np.array(states)[:, :2]
    assert len(path) == 25, len(path)
    assert path[:, 1].max() > 2.5 and (np.diff(path[:, 0]) > -0.05).all()


def test_play_is_the_same_however_it_is_cut_up():
    whole = play(3, 6, 15, jitter=0.3)
    parts = [play(3, 2, 15, first=first, jitter=0.3) for first in (0, 2, 4)]
    assert np.array_equal(whole.states, np.concatenate([part.states for part in parts]))
    assert np.array_equal(whole.actions, np.concatenate([part.actions for part in parts]))
    assert not np.array_equal(whole.states, play(4, 6, 15, jitter=0.3).states)


def test_play_is_what_the_worlds_do():
    recorded, space = play(0, 5, 20, jitter=0.5, layout="medium"), Maze().action_space
    worlds = MazeWorlds(5, layout="medium")
    worlds.set_states(recorded.states[:, 0])
    for step in range(20):
        assert all(space.contains(action) for action in recorded.actions[:, step])
        worlds.act(recorded.actions[:, step])
        assert np.array_equal(worlds.states(), recorded.states[:, step + 1])


def test_play_goes_everywhere_and_both_ways():
    states = play(0, 150, 100, jitter=0.3).states
    counts = np.bincount(MazeMap().cells(states[..., :2].reshape(-1, 2)), minlength=7)
    assert counts.min() > 0.07 * counts.sum(), counts
    rounds = np.abs(states[:, 25:, 0] - states[:, :-25, 0]) > 1.2  # from one leg to the other
    assert 0.15 < rounds.mean() < 0.6, rounds.mean()


def test_the_tasks_action_statistics_are_the_plays():
    action = preset_node("task", "maze")["action"]
    actions = play(0, 300, 100, jitter=0.3).actions
    assert actions.mean((0, 1)) == pytest.approx(action["mean"], abs=0.02)
    assert actions.std((0, 1)) == pytest.approx(action["std"], abs=0.02)


# --- the commands --------------------------------------------------------------------------------


def run(main, name, arguments, monkeypatch, capsys, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    launch(main, name)
    return capsys.readouterr().out


def test_the_simulator_plans(monkeypatch, capsys, tmp_path):
    given = ["env=maze", "model=simulator", "episodes=4", "num_envs=4", "video=none", "threads=1",
             "planner.num_samples=48", "planner.num_elites=6", "planner.iterations=4",
             "output=json", "env.layout=medium"]  # fmt: skip
    document = json.loads(run(plan.main, "plan", given, monkeypatch, capsys, tmp_path))
    rates = {name: found["rate"] for name, found in document["policies"].items()}
    assert rates["replay"] == 1 and rates["planner"] >= 0.5, rates


def test_collected_play_is_the_environments(monkeypatch, capsys, tmp_path):
    given = ["env=maze", "out=play", "episodes=3", "steps=10", "seed=5"]
    run(collect.main, "collect", given, monkeypatch, capsys, tmp_path)
    data, recorded = PlayDataset(tmp_path / "play"), play(5, 3, 10, jitter=0.3)
    assert data.info.env == "jepa_wm/Maze-v0"
    assert (data.info.block, data.info.action_dim, data.info.state_dim) == (5, 2, 4)
    assert np.array_equal(data.states, recorded.states[:, ::5].astype(np.float32))
    frame = Maze().render_state(recorded.states[2, 5])
    assert np.array_equal(data.frames[2, 1], collect.shrink(frame[None], 64)[0])
    assert data.info.targets == preset_node("task", "maze")["targets"]
