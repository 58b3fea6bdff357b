"""Running tasks: what is recorded, what counts, and that no episode feels another."""

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from point_mass import BOX, PointEnv, PointModel, positions

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.episode import Episode, Rules, Task, load_episode, save_episode, tally
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.control.policies import NoOpPolicy, RandomPolicy, ReplayPolicy
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.errors import ConfigError
from jepa_wm.planners.cem import CEM

torch.set_num_threads(1)
RULES = {"budget": 12, "success": "success", "frames": "state", "states": "state"}


def agent():
    planner = CEM(
        horizon=4, num_samples=64, num_elites=8, iterations=3, init_std=1.0, min_std=0.0,
        momentum=0.0, momentum_std=None, constraints={}, clip=True, include_mean=True,
        returns="mean", std_estimator="unbiased",
    )  # fmt: skip
    return MPC(
        world_model=PointModel(),
        planner=planner,
        objective=functools.partial(GoalDistance, norm="l2", reduce="sum", steps="last"),
        codec=ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=BOX[0], high=BOX[1]),
        device=torch.device("cpu"),
        replan_every=1,
    )


DICT = functools.partial(PointEnv, observation="dict")


def tasks(count, far=0.5):
    starts, goals = positions(0, count) * far, positions(1, count) * far
    return [
        Task(id=i, seed=100 + i, options={"state": starts[i], "goal": goals[i]}, goal=goals[i])
        for i in range(count)
    ]


def run(who, todo, num_envs=3, make=PointEnv, asynchronous=False, **changes):
    envs = make_envs(make, num_envs, asynchronous)
    try:
        return run_episodes(envs, who, todo, Rules(**{**RULES, **changes}))
    finally:
        envs.close()


def same(one: Episode, other: Episode):
    assert (one.id, one.seed, one.success, one.presolved) == (
        other.id, other.seed, other.success, other.presolved,
    )  # fmt: skip
    for name in ("actions", "rewards", "states"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for key in one.metrics:
        assert np.array_equal(one.metrics[key], other.metrics[key]), key
    for key in ("step", "horizon", "cost", "best", "spread"):
        assert np.array_equal(one.plans[key], other.plans[key]), key


@pytest.mark.parametrize("num_envs", [2, 3, 4, 9])
def test_an_episode_is_the_same_however_many_run_beside_it(num_envs):
    todo = tasks(5)
    alone = run(agent(), todo, 1)
    together = run(agent(), todo, num_envs)
    assert [episode.id for episode in together] == [0, 1, 2, 3, 4]
    assert any(e.success for e in alone) and len({e.steps for e in alone}) > 1
    for one, other in zip(alone, together, strict=True):
        same(one, other)


@pytest.mark.slow
def test_processes_of_their_own_give_the_same_episodes():
    todo = tasks(3)
    here = run(agent(), todo, 2, film={0}, budget=4)
    there = run(agent(), todo, 2, asynchronous=True, film={0}, budget=4)
    for one, other in zip(here, there, strict=True):
        same(one, other)
    assert np.array_equal(here[0].frames, there[0].frames)


def test_the_last_batch_may_be_smaller_and_starts_may_come_from_the_seed():
    todo = [Task(id=i, seed=7 + i, goal=np.zeros(2, np.float32)) for i in range(4)]
    episodes = run(agent(), todo, 3)
    assert [episode.id for episode in episodes] == [0, 1, 2, 3]
    assert len({tuple(episode.states[0]) for episode in episodes}) == 4
    alone = run(agent(), todo, 1)
    for one, other in zip(episodes, alone, strict=True):
        same(one, other)


def test_the_whole_path_is_recorded_from_the_reset_on():
    todo = tasks(2, far=2.0)
    first, second = run(agent(), todo, 1, budget=10, film={0, 1}, stop_on_success=False)
    for episode, task in ((first, todo[0]), (second, todo[1])):
        assert episode.frames.shape == (11, 8, 8, 3)
        assert episode.frames.dtype == np.uint8
        assert episode.actions.shape == (10, 2)
        assert episode.actions.dtype == np.float32
        assert episode.states.shape == (11, 2)
        assert episode.rewards.shape == (10,)
        assert np.array_equal(episode.metrics["steps"], np.arange(11))
        np.testing.assert_allclose(episode.states[0], task.options["state"])
        path = episode.states[0] + np.cumsum(0.1 * episode.actions.astype(float), axis=0)
        np.testing.assert_allclose(episode.states[1:], path, atol=1e-12)
        np.testing.assert_allclose(-episode.rewards, episode.metrics["distance"][1:])
        env = PointEnv()
        env.reset(options=task.options)
        assert np.array_equal(episode.frames[0], env.render())


def test_replaying_the_recorded_actions_ends_on_the_goal():
    env, rng = PointEnv(terminate=False), np.random.default_rng(0)
    env.reset(seed=1)
    frames, states = [env.render()], [env.position.copy()]
    actions = rng.uniform(-1, 1, (25, 2)).astype(np.float32)
    for action in actions:
        env.step(action)
        frames.append(env.render())
        states.append(env.position.copy())
    options = {"state": states[0], "goal": states[25]}
    todo = [Task(id=0, seed=5, options=options, goal=frames[25])]
    (episode,) = run(
        ReplayPolicy(*BOX, {5: actions}),
        todo,
        make=functools.partial(PointEnv, terminate=False),
        film={0},
        budget=25,
        stop_on_success=False,
    )
    assert np.array_equal(episode.frames, np.stack(frames))
    assert np.array_equal(episode.frames[-1], episode.goal)
    assert episode.success
    np.testing.assert_array_equal(episode.states[-1], states[25])


def straight(distance, terminate=True, **changes):
    """Walk right from 0 to a goal ``distance`` steps away and on."""
    todo = [Task(id=0, seed=0, options={"state": (0.0, 0.0), "goal": (0.1 * distance, 0.0)})]
    walk = ReplayPolicy(*BOX, {0: np.tile(np.float32([1, 0]), (20, 1))})
    make = functools.partial(PointEnv, terminate=terminate)
    (episode,) = run(walk, todo, make=make, **changes)
    return episode


def test_success_at_any_step_by_default_and_for_as_long_as_asked():
    """The walk is within 0.05 of the goal for exactly the step at it, and passes on."""
    passing = {"terminate": False, "stop_on_success": False}
    assert straight(5, **passing).success and straight(5, **passing).steps == 12
    assert straight(5, terminate=False).steps == 5
    assert straight(5, **passing).metrics["success"].sum() == 1
    assert not straight(5, hold=3, **passing).success
    to_and_fro = np.float32([1, 0]) * np.array([[1], [1], [1], [1], [1], [1], [-1], [-1]])
    twice = ReplayPolicy(*BOX, {0: to_and_fro})  # at the goal at steps 5 and 7, not between
    (visits,) = run(
        twice,
        [Task(id=0, seed=0, options={"state": (0.0, 0.0), "goal": (0.5, 0.0)})],
        make=functools.partial(PointEnv, terminate=False),
        hold=2,
    )
    assert visits.metrics["success"].sum() == 2 and not visits.success
    standing = ReplayPolicy(*BOX, {0: np.tile(np.float32([1, 0]), (5, 1))})
    todo = [Task(id=0, seed=0, options={"state": (0.0, 0.0), "goal": (0.5, 0.0)})]
    make = functools.partial(PointEnv, terminate=False)
    (held,) = run(standing, todo, make=make, hold=3)
    assert held.success and held.steps == 7, "steps 5, 6 and 7 are in the goal"
    assert held.config["criterion"] == "success at 3 consecutive steps within 12"


def test_success_at_the_very_last_step_counts_with_its_frame():
    walk = {i: np.tile(np.float32([1, 0]), (20, 1)) for i in range(3)}
    todo = [
        Task(id=i, seed=i, options={"state": (0.0, 0.0), "goal": (x, 0.0)})
        for i, x in enumerate((1.2, 5.0, 0.3))
    ]
    for terminate in (True, False):
        make = functools.partial(PointEnv, terminate=terminate)
        late, never, early = run(ReplayPolicy(*BOX, walk), todo, make=make, film={0, 2})
        assert (late.success, late.steps) == (True, 12)
        assert (never.success, never.steps) == (False, 12)
        assert (early.success, early.steps) == (True, 3)
        for episode, x in ((late, 1.2), (early, 0.3)):
            env = PointEnv()
            env.reset(options={"state": (x, 0.0)})
            assert np.array_equal(episode.frames[-1], env.render()), "the terminal frame"
            assert len(episode.frames) == episode.steps + 1


def test_a_hold_is_refused_where_the_env_ends_at_the_first_success():
    with pytest.raises(ConfigError, match="hold=3, but the environment ended at the first success"):
        straight(5, hold=3)


def test_an_env_that_runs_out_ends_the_episode():
    todo = tasks(3, far=9.0)
    episodes = run(agent(), todo, 2, make=functools.partial(PointEnv, limit=5))
    assert [(e.steps, e.success) for e in episodes] == [(5, False)] * 3


def test_pairs_that_start_solved_are_not_run_and_not_counted():
    todo = [
        Task(id=i, seed=i, options={"state": (0.0, 0.0), "goal": (0.0 if i % 3 == 1 else 0.3, 0.0)})
        for i in range(10)
    ]
    walk = ReplayPolicy(*BOX, {i: np.tile(np.float32([1, 0]), (20, 1)) for i in range(0, 10)})
    episodes = run(walk, todo, 4, film={1})
    assert tally(episodes) == (7, 7, 3)
    assert tally(run(NoOpPolicy(*BOX), todo, 4)) == (0, 7, 3)
    assert episodes[1].presolved and not episodes[1].success
    assert episodes[1].actions.shape == (0, 2)
    assert episodes[1].frames.shape[0] == 1


def test_only_running_rows_are_rendered_and_only_when_looked_at():
    made = []

    def make():
        made.append(PointEnv())
        return made[-1]

    todo = tasks(3, far=9.0)
    near = {"state": (0.0, 0.0), "goal": (0.15, 0.0)}
    todo[1] = Task(id=1, seed=101, options=near, goal=np.zeros(2, np.float32))
    walk = run(agent(), todo, 3, make=make, frames="state")
    assert sum(env.renders for env in made) == 0
    made.clear()
    model_free = run(agent(), todo, 3, make=make, frames="state", film={2})
    assert [env.renders for env in made] == [0, 0, 13]
    assert model_free[0].frames is None
    same(walk[2], model_free[2])


class Camera(PointModel):
    """Latent: the shade of the picture, twice."""

    def encode(self, frames):
        return frames.flatten(2).mean(2, keepdim=True).expand(-1, -1, 2) / 255


@pytest.mark.parametrize(("frames", "observation"), [("render", "state"), ("pixels", "dict")])
def test_pictures_reach_the_agent_as_rendered_at_decisions(frames, observation):
    made, who = [], agent()
    who.world_model = Camera()

    def make():
        made.append(PointEnv(observation=observation))
        return made[-1]

    goal = np.zeros((8, 8, 3), np.uint8)
    todo = [Task(id=i, seed=i, options={"state": (i, 5.0)}, goal=goal) for i in range(2)]
    episodes = run(who, todo, 2, make=make, frames=frames, budget=12)
    assert [episode.steps for episode in episodes] == [12, 12]
    if frames == "render":
        assert [env.renders for env in made] == [6, 6], "one a decision, 12 steps in blocks of 2"
    env = PointEnv()
    env.reset(options=todo[1].options)
    shade = env.render().mean() / 255
    who.reset(np.stack([goal]), [0])
    who.act(env.render()[None])
    torch.testing.assert_close(who._running.context.z[0, 0], torch.full((2,), float(shade)))


def test_proprio_is_what_the_rules_name():
    who, seen = agent(), []

    class Watches(type(who)):
        def act(self, frames, proprio=None, active=None):
            seen.append((frames, proprio))
            return super().act(frames, proprio, active)

    who.__class__ = Watches
    run(who, tasks(2), 2, proprio="proprio")
    frames, proprio = seen[0]
    assert proprio.dtype == np.float32
    np.testing.assert_allclose(proprio, frames, rtol=1e-6)
    assert seen[1] == (None, None), "inside a block nothing is looked at"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": "observation", "make": DICT}, r"\['pixels', 'state'\] or info"),
        ({"frames": "pixel"}, r"'pixel' is not in .*observation \[\] or info; it has .*distance"),
        ({"success": "solved"}, "'solved' is not in the environment's info; it has .*success"),
        ({"states": "pose"}, "'pose' is not in the environment's info"),
        ({"proprio": "joints"}, "'joints' is not in"),
    ],
)
def test_an_unknown_key_is_refused_with_the_keys_there_are(changes, message):
    with pytest.raises(ConfigError, match=message):
        run(agent(), tasks(1), **changes)


def test_an_env_without_a_picture_is_refused():
    make = functools.partial(PointEnv, render_mode=None)
    make = lambda: type("Blind", (PointEnv,), {"render": lambda self: None})()  # noqa: E731
    with pytest.raises(ConfigError, match="renders no frames; make it with render_mode"):
        run(agent(), tasks(1), make=make, frames="render")


class Buttons(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.MultiBinary(4)


def test_actions_that_are_neither_numbers_nor_choices_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"action space MultiBinary\(4\) is a MultiBinary"):
        run(agent(), tasks(1), make=Buttons)


def test_envs_that_reset_themselves_are_refused():
    envs = gymnasium.vector.SyncVectorEnv([PointEnv])
    with pytest.raises(ConfigError, match="resets by itself; build it with make_envs"):
        run_episodes(envs, agent(), tasks(1), Rules(**RULES))


def test_an_action_outside_the_space_is_refused():
    wild = RandomPolicy(BOX[0] * 9, BOX[1] * 9)
    with pytest.raises(ValueError, match="of task 0 is outside Box"):
        run(wild, tasks(1))


def test_impossible_tasks_and_rules_are_refused():
    with pytest.raises(ValueError, match="ids must be unique"):
        run(agent(), [tasks(1)[0]] * 2)
    with pytest.raises(ValueError, match="every task has a goal or none"):
        run(agent(), [*tasks(1), Task(id=9, seed=9, options={})])
    with pytest.raises(ConfigError, match="budget=0"):
        Rules(budget=0, success="success")
    with pytest.raises(ConfigError, match="hold=0"):
        Rules(budget=1, success="success", hold=0)


def test_progress_reaches_its_end_and_episodes_are_handed_over_in_order():
    seen, handed = [], []
    envs = make_envs(PointEnv, 2)
    todo = tasks(5)
    episodes = run_episodes(
        envs, agent(), todo, Rules(**RULES), lambda *at: seen.append(at), handed.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == (36, 36)
    assert [id(one) for one in handed] == [id(one) for one in episodes]


# --- plans and files ----------------------------------------------------------------------------


def test_the_plans_of_a_row_are_its_own_decisions():
    todo = tasks(3, far=2.0)
    todo[0] = Task(
        id=0, seed=100, options={"state": (0.0, 0.0), "goal": (0.15, 0.0)},
        goal=np.float32([0.15, 0]),
    )  # fmt: skip
    short, long, _ = run(agent(), todo, 3)
    assert short.steps <= 6 < long.steps == 12
    assert long.plans["step"].tolist() == [0, 2, 4, 6, 8, 10]
    assert len(short.plans["step"]) == -(-short.steps // 2)
    assert long.plans["rows"].tolist()[0] == 3 and long.plans["rows"].tolist()[-1] == 2
    assert long.plans["horizon"].tolist() == [4, 4, 4, 3, 2, 1]
    assert long.plans["best"].shape == (6, 3)
    assert long.plans["actions"].shape == (6, 4, 4)
    assert np.isnan(long.plans["actions"][5, 1:]).all()
    executed = long.plans["actions"][:, 0].reshape(12, 2)
    np.testing.assert_allclose(executed, long.actions, atol=1e-6)
    assert long.seconds.shape == (6,) and (long.seconds > 0).all()


def test_the_seconds_of_steps_and_pictures_go_to_the_rows_they_were_for():
    class Slow(PointEnv):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

        def render(self):
            time.sleep(0.01)
            return super().render()

    todo = tasks(2, far=9.0)
    short = Task(id=2, seed=9, options={"state": (0.0, 0.0), "goal": (0.0, 0.0)}, goal=todo[0].goal)
    episodes = run(NoOpPolicy(*BOX), [*todo, short], 3, make=Slow, film={1})
    steps = [episode.timing["environment"] for episode in episodes]
    renders = [episode.timing["render"] for episode in episodes]
    assert sum(steps) > 0.36  # 12 lock steps of 3 environments, 10 ms each
    assert min(steps[:2]) > 0.17 and steps[2] < 0.1  # one that is not run costs a reset
    assert renders[0] == renders[2] == 0 and 0.13 < renders[1] < sum(steps)


def test_an_episode_survives_the_disk(tmp_path):
    (episode,) = run(agent(), tasks(1), 1, film={0})
    path = save_episode(episode, tmp_path / "new")
    assert path.name == "episode_0000.npz"
    again = load_episode(path)
    same(episode, again)
    for name in ("frames", "goal", "seconds"):
        assert np.array_equal(getattr(episode, name), getattr(again, name))
    assert again.config == episode.config
    assert again.timing == episode.timing and again.timing["environment"] > 0
    assert json.loads(path.with_suffix(".json").read_text())["seed"] == 100
    with np.load(path, allow_pickle=False) as stored:
        assert set(stored.files) >= {"actions", "metrics/distance", "plans/best"}


def test_absent_parts_stay_absent_on_disk(tmp_path):
    (episode,) = run(NoOpPolicy(*BOX), tasks(1), 1, states=None)
    again = load_episode(save_episode(episode, tmp_path))
    assert again.frames is None and again.states is None
    assert dict(again.plans) == {} and again.seconds.shape == (0,)


@pytest.mark.parametrize("fault", ["missing", "truncated", "foreign", "no json"])
def test_a_broken_file_is_refused_by_name(tmp_path, fault):
    (episode,) = run(NoOpPolicy(*BOX), tasks(1), 1)
    path = save_episode(episode, tmp_path)
    if fault == "missing":
        path.unlink()
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    elif fault == "foreign":
        np.savez(path, other=np.zeros(3))
    else:
        path.with_suffix(".json").unlink()
    with pytest.raises(ConfigError, match=r"episode_0000\.npz: not a saved episode"):
        load_episode(path)


# --- baselines ----------------------------------------------------------------------------------


def draws(policy, seeds, steps=5):
    policy.reset(None, seeds)
    return np.stack([policy.act() for _ in range(steps)], 1)


@pytest.mark.parametrize("std", [None, 0.3, [0.1, 0.9]])
def test_a_random_stream_belongs_to_its_seed(std):
    policy = RandomPolicy(*BOX, std=std)
    three, four = draws(policy, [3, 4])
    assert not np.array_equal(three, four)
    assert np.array_equal(draws(policy, [9, 4, 3])[2], three)
    env = PointEnv()
    policy.reset(None, [3])
    again = []
    for _ in range(5):
        env.reset(seed=3)  # a reset of the env does not restart the stream
        again.append(policy.act()[0])
    assert np.array_equal(again, three)
    assert three.dtype == np.float32
    assert (np.abs(three) <= 1).all()


def test_a_random_stream_is_the_same_in_another_process():
    code = (
        "from jepa_wm.control.policies import RandomPolicy;"
        "p = RandomPolicy([-1, -1], [1, 1], std=0.3);"
        "p.reset(None, [3]); print([p.act().tolist() for _ in range(5)])"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    ).stdout
    here = draws(RandomPolicy([-1, -1], [1, 1], std=0.3), [3])
    assert json.loads(said) == here.transpose(1, 0, 2).tolist()


def test_the_random_policy_has_the_asked_mean_and_std():
    wide = (np.full(2, -9.0), np.full(2, 9.0))
    actions = draws(RandomPolicy(*wide, mean=[0.5, -0.5], std=[0.1, 0.3]), range(200), 50)
    np.testing.assert_allclose(actions.mean((0, 1)), [0.5, -0.5], atol=0.02)
    np.testing.assert_allclose(actions.std((0, 1)), [0.1, 0.3], atol=0.01)


def test_baselines_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="unbounded: give RandomPolicy a std"):
        RandomPolicy([-np.inf], [np.inf])
    with pytest.raises(ValueError, match="are not a box"):
        NoOpPolicy([1.0], [0.0])
    with pytest.raises(ValueError, match=r"no recorded actions for episode seeds \[8\]"):
        ReplayPolicy(*BOX, {7: np.zeros((1, 2))}).reset(None, [7, 8])


def test_replay_stands_still_after_its_end_and_dropped_rows_get_zeros():
    policy = ReplayPolicy(*BOX, {7: np.ones((1, 2)), 8: np.ones((3, 2))})
    policy.reset(None, [7, 8])
    assert policy.act().tolist() == [[1, 1], [1, 1]]
    assert policy.act().tolist() == [[0, 0], [1, 1]]
    assert policy.act(active=np.array([True, False])).tolist() == [[0, 0], [0, 0]]
