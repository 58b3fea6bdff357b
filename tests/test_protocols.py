"""Protocols: what they fix, what their names and hashes tell, and which episodes are run."""

import functools
import hashlib
import json
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from bundle.tiny import TINY_LEWM, random_tensors
from control.point_mass import BOX, PointEnv

from jepa_wm import plan
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.control.episode import Rules, Task, load_episode, tally
from jepa_wm.control.episode_list import read_episode_list, write_episode_list
from jepa_wm.control.policies import ReplayPolicy
from jepa_wm.control.protocol import content_hash, protocol_of
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.episodes import make_rules, make_segments, settle_protocol, unsolved
from jepa_wm.experiments.setup import load_brain, make_agent, make_tasks
from jepa_wm.launch import build, compose, launch

torch.set_num_threads(1)
QUICK = ("planner=random_shooting", "planner.num_samples=4", "threads=1", "video=none",
         "baselines=false", "output=json")  # fmt: skip


def options_of(*overrides):
    options, preset = compose("plan", overrides)
    return options | {"preset": preset, "overrides": list(overrides)}


def tiny_model(folder, more=()):
    actions = {"block": 5, "mean": [0.0, 0.0], "std": [0.3, 0.3]}
    keys = {f"jepa_wm.action.{name}": value for name, value in actions.items()}
    meta = TINY_LEWM | keys | {"jepa.pred.action_dim": 10} | dict(more)
    return write_bundle(folder / "tiny.gguf", meta, random_tensors(meta, 0))


@functools.cache
def case_of(*overrides):
    """Options, environment, episodes and protocol of a command line."""
    options = settle_protocol(options_of("episodes=3", *overrides))
    env = build(options["env"], "env").unwrapped
    segments = make_segments(options, env)
    return options, env, segments, protocol_of(options, env, segments)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("lewm", {"episodes": 50, "seed": 42, "goal_offset": 25, "budget": 50, "replan_every": 5,
                  "history": 1, "success_at": "any_step", "hold": 1, "shrink_horizon": False}),
        ("dino_wm", {"episodes": 50, "seed": 99, "goal_offset": 25, "replan_every": 5,
                     "history": None, "success_at": "segment_end", "stop_on_success": True}),
        ("own", {"episodes": 20, "seed": 0, "goal_offset": 25, "budget": 50, "replan_every": 1,
                 "history": None, "success_at": "any_step", "shrink_horizon": True}),
    ],
)  # fmt: skip
def test_a_preset_holds_what_was_published(name, published):
    options = options_of(f"protocol={name}")
    assert {key: options[key] for key in published} == published
    assert options["goal"] == "play" and options["planner_seed"] is None


def test_each_task_keeps_its_own_distance_and_budget():
    assert [options_of("env=reach")[key] for key in ("goal_offset", "budget")] == [12, 20]


def test_a_changed_value_shows_in_the_name_and_the_hash():
    *_, plain = case_of("protocol=lewm")
    *_, changed = case_of("protocol=lewm", "budget=60")
    assert plain.label == "lewm*(episodes)" and changed.label == "lewm*(budget,episodes)"
    assert plain.hash != changed.hash and plain.rules_hash != changed.rules_hash
    assert plain.episodes_hash == changed.episodes_hash
    assert case_of("protocol=lewm")[-1] == plain and plain.record()["hash"] == plain.hash


@pytest.mark.parametrize("change", ["seed=7", "planner_seed=7", "episodes=2"])
def test_another_draw_is_another_hash_of_the_same_rules(change):
    one, other = case_of()[-1], case_of(change)[-1]
    assert one.hash != other.hash and one.rules_hash == other.rules_hash


@pytest.mark.parametrize(
    "change", ["hold=2", "success_at=segment_end", "history=1", "replan_every=2", "goal=env",
               "env.success=block", "stop_on_success=false", "shrink_horizon=false"]
)  # fmt: skip
def test_every_rule_is_in_the_hash(change):
    assert case_of()[-1].rules_hash != case_of(change)[-1].rules_hash


def test_what_changes_no_episode_is_not_in_the_hash():
    same = ("num_envs=2", "device=cpu", "planner=mppi", "model=simulator", "env.terminate=false")
    assert case_of(*same)[-1].hash == case_of()[-1].hash


def test_a_hash_is_of_the_canonical_text():
    text = b'{"a":null,"b":[1,2.5]}'
    assert content_hash({"b": [1, 2.5], "a": None}) == hashlib.sha256(text).hexdigest()


def test_a_model_trained_on_the_same_play_is_told_so():
    *_, protocol = case_of("seed=3")
    assert protocol.in_distribution("0, 100003") and protocol.in_distribution(100003)
    assert not protocol.in_distribution("0, 2") and not protocol.in_distribution(None)
    assert not case_of("seed=3", "goal=env")[-1].in_distribution("100003")


@pytest.mark.parametrize("trained_on", ["2, 100000", "0"])
def test_a_run_says_whether_the_model_was_trained_on_its_episodes(trained_on, tmp_path, capsys):
    model = tiny_model(tmp_path, {"jepa_wm.source.play_seed": trained_on})
    plan.main(options_of(*QUICK, f"model={model}", "episodes=1", "budget=5", "output=text",
                         "env.render_size=64", f"out={tmp_path / 'run'}"))  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["in_distribution"] == (trained_on != "0")
    assert ("in-distribution" in capsys.readouterr().out) == (trained_on != "0")


# Episode lists


@pytest.mark.parametrize("goal", ["play", "env"])
def test_a_list_gives_the_same_episodes_back(goal, tmp_path):
    options, _, segments, protocol = case_of(f"goal={goal}", "seed=5", "goal_offset=10")
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    again, _, read, other = case_of(f"episode_list={path}", "seed=0", "episodes=9")
    for name in ("goal", "episodes", "seed", "goal_offset"):
        assert again[name] == options[name], name
    for name in ("starts", "goals", "actions"):
        assert np.array_equal(getattr(read, name), getattr(segments, name)), name
        assert getattr(read, name).dtype == getattr(segments, name).dtype
    assert read.names == segments.names and other.episodes_hash == protocol.episodes_hash


def test_a_list_may_be_seen_and_judged_otherwise(tmp_path):
    _, _, segments, protocol = case_of()
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    case_of(f"episode_list={path}", "env.success=block", "env.draw_goal=none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('"id": 1', '"id": 7'), ["hash", "changed"]),
        (lambda text: text[: len(text) // 2], ["not a list of episodes"]),
        (lambda text: "[]", ["not a list of episodes"]),
        (lambda text: text.replace("jepa_wm.episodes", "other"), ["format other"]),
        (lambda text: "[" * 100_000, ["not a list of episodes"]),
    ],
)
def test_a_list_that_is_none_is_refused_in_one_line(change, words, tmp_path):
    _, _, segments, protocol = case_of()
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError) as refusal:
        read_episode_list(path)
    said = str(refusal.value)
    assert "\n" not in said and str(path) in said and all(word in said for word in words), said


@pytest.mark.parametrize("key", ["start", "goal", "actions"])
@pytest.mark.parametrize("value", [[float("nan")], [[1, 2], [3]], "text", None, []])
def test_a_hashed_list_of_nonsense_is_refused(key, value, tmp_path):
    _, _, segments, protocol = case_of()
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    document = json.loads(path.read_text())
    document["episodes"][0][key] = value
    document["hash"] = content_hash(document["episodes"])
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="not a list of episodes"):
        read_episode_list(path)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (["env=reach"], ["PushT-v0", "Reach-v0"]),
        (["env.block_shape=L"], ["block_shape=T", "block_shape=L"]),
    ],
)
def test_a_list_of_another_environment_is_refused(run, words, tmp_path):
    _, _, segments, protocol = case_of()
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    with pytest.raises(ConfigError) as refusal:
        case_of(f"episode_list={path}", *run)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": "x"}, "seed is 'x'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"goal_offset": -5}, "goal_offset is -5"),
        ({"goal": 5}, "goal is 5"),
        ({"replaced": -1}, "replaced is -1"),
        ({"action_size": "2"}, "action_size is '2'"),
        ({"environment": {}}, "'id'"),
        ({"environment": []}, r"environment is \[\]"),
        ({"id": 10**30}, "too large"),
        ({"id": 0.5}, "id is 0.5"),
        ({"id": True}, "id is True"),
    ],
)
def test_what_a_list_tells_of_itself_is_checked(change, words, tmp_path):
    _, _, segments, protocol = case_of()
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    document = json.loads(path.read_text())
    for key, value in change.items():
        (document["episodes"][0] if key == "id" else document)[key] = value
    document["hash"] = content_hash(document["episodes"])
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=f"not a list of episodes.*{words}"):
        read_episode_list(path)


@pytest.mark.parametrize("key", ["start", "goal"])
def test_a_state_that_no_episode_can_have_is_refused_by_its_episode(key, tmp_path):
    _, _, segments, protocol = case_of("env=tworoom")
    path = write_episode_list(tmp_path / "list.json", protocol, segments)
    document = json.loads(path.read_text())
    document["episodes"][1][key] = [-500.0, 3.0]
    document["hash"] = content_hash(document["episodes"])
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"list\.json: episode 1: .*-500"):
        case_of("env=tworoom", f"episode_list={path}")


@pytest.mark.parametrize("goal", ["play", "env"])
@pytest.mark.parametrize("name", ["pusht", "tworoom", "wall", "maze", "reach"])
def test_a_goal_picture_is_what_its_episode_shows_there(name, goal):
    """However many episodes are drawn beside it."""
    options, env, segments, _ = case_of(
        f"env={name}", f"goal={goal}", "env.draw_goal=goal", "env.render_size=64", "episodes=3"
    )
    tasks = make_tasks(options, env.unwrapped, segments, False)
    for task, state in zip(tasks, segments.goals, strict=True):
        seen, _ = env.reset(seed=0, options={"state": state, "goal_state": state})
        assert np.array_equal(task.goal, seen), task.id


# Starts that are solved


def test_solved_starts_are_in_no_rate_or_replaced_by_further_episodes(tmp_path, capsys):
    """Ten pairs of which three start solved: seven are evaluated."""
    options, env, segments, _ = case_of("episodes=10", "goal_offset=10")
    goals = segments.goals.copy()
    goals[[1, 4, 5]] = segments.starts[[1, 4, 5]]
    segments = replace(segments, goals=goals)
    test = protocol_of(options, env, segments)
    path = write_episode_list(tmp_path / "list.json", test, segments)
    plan.main(options_of(*QUICK, "model=simulator", "budget=5", f"episode_list={path}",
                         f"out={tmp_path / 'run'}"))  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    planner = result["policies"]["planner"]
    assert (planner["count"], planner["presolved"]) == (7, 3)

    def draw(count):
        return segments.rows(np.arange(min(count, 10)))

    found = unsolved(draw, 5, lambda one: one.names[0] in (1, 4, 5))
    assert found.names == [0, 2, 3, 6, 7] and found.replaced == 3
    assert np.array_equal(found.starts, segments.starts[found.names])
    with pytest.raises(ConfigError, match="of 10 episodes only 7 do not start at their goal; 8"):
        unsolved(draw, 8, lambda one: one.names[0] in (1, 4, 5))


def test_replacing_solved_starts_keeps_the_others_as_they_were():
    options, env, drawn, _ = case_of("env=push", "episodes=12")
    rules, solved = options["task"]["success"], []
    for name, start, goal in zip(drawn.names, drawn.starts, drawn.goals, strict=True):
        info = env.reset(seed=1, options={"state": start, "goal_state": goal})[1]
        solved += [name] if info[rules] else []
    assert solved, "the test needs play in which the block rests"
    *_, replaced, test = case_of("env=push", "episodes=12", "replace_presolved=true")
    assert len(replaced.names) == 12 and not set(solved) & set(replaced.names)
    kept = [name for name in drawn.names if name not in solved]
    assert replaced.names[: len(kept)] == kept
    assert np.array_equal(replaced.starts[: len(kept)], drawn.starts[kept])
    assert replaced.replaced == replaced.names[-1] + 1 - 12 and test.replace_presolved


# Seeds


def test_planner_seeds_meet_the_same_episodes():
    options, env, segments, _ = case_of("model=simulator")
    tasks = {
        seed: make_tasks(options | {"planner_seed": seed}, env, segments, True)
        for seed in (None, options["seed"], 1, 2)
    }
    assert [t.seed for t in tasks[None]] == [t.seed for t in tasks[0]]
    assert not {t.seed for t in tasks[1]} & {t.seed for t in tasks[2]}
    for one, other in zip(tasks[1], tasks[2], strict=True):
        assert one.reset_seed == other.reset_seed == tasks[0][one.id].seed
        assert np.array_equal(one.options["state"], other.options["state"])


def test_the_reset_has_its_own_seed():
    """Without a state the start is drawn from it, whatever the planner's."""
    todo = [Task(id=i, seed=i, reset_seed=7) for i in range(2)]
    episodes = walk(todo, np.zeros((1, 2)), budget=1, states="state")
    assert np.array_equal(episodes[0].states, episodes[1].states)


# Success


def walk(todo, actions, **rules):
    envs = make_envs(lambda: PointEnv(terminate=False), len(todo))
    agent = ReplayPolicy(*BOX, {task.seed: np.float32(actions) for task in todo})
    return run_episodes(envs, agent, todo, Rules(success="success", **rules))


@pytest.mark.parametrize(
    ("at", "budget", "steps"),
    [(5, 12, None), (4, 12, 4), (8, 12, 8), (10, 10, 10), (9, 10, None)],
)
def test_only_the_end_of_a_segment_counts(at, budget, steps):
    """A walk that is at its goal at one step alone; segments of four, and the budget's last."""
    todo = [Task(id=0, seed=0, options={"state": (0.0, 0.0), "goal": (0.1 * at, 0.0)})]
    (episode,) = walk(todo, np.tile([1, 0], (20, 1)), budget=budget, segment=4)
    assert episode.success == (steps is not None)
    assert episode.steps == (steps or budget)
    assert "end of a segment of 4 steps" in episode.config["criterion"]


def test_an_episode_that_succeeds_stops_while_the_others_go_on():
    todo = [Task(id=i, seed=i, options={"state": (0.0, 0.0), "goal": (x, 0.0)})
            for i, x in enumerate((0.4, 0.8, 0.5))]  # fmt: skip
    episodes = walk(todo, np.tile([1, 0], (20, 1)), budget=12, segment=4)
    assert [(e.success, e.steps) for e in episodes] == [(True, 4), (True, 8), (False, 12)]


def test_the_segment_is_the_executed_part_of_a_plan():
    options, *_ = case_of("protocol=dino_wm")
    rules = make_rules(options, 5, "render")
    assert rules.segment == 25 and rules.stop_on_success and rules.budget == 250
    assert make_rules(case_of("protocol=lewm")[0], 5, "render").segment is None


@pytest.mark.parametrize(
    "change", ["hold=2", "success_at=segment_end", "stop_on_success=false", "protocol=dino_wm"]
)
def test_the_environment_runs_on_where_the_rules_ask_for_more(change):
    assert settle_protocol(options_of())["env"]["terminate"] is True
    assert settle_protocol(options_of(change))["env"]["terminate"] is False


# What the planner may know


class Poisoned(gymnasium.Wrapper):
    """Tells lies about everything but the picture."""

    def reset(self, **given):
        seen, info = self.env.reset(**given)
        return seen, self.poison(info)

    def step(self, action):
        seen, _, _, _, info = self.env.step(action)
        return seen, float("nan"), False, False, self.poison(info)

    def poison(self, info):
        lies = {key: np.full_like(value, -1e6) for key, value in info.items()
                if isinstance(value, np.ndarray)}  # fmt: skip
        return {key: -1e6 for key in info} | lies | {"success_pose": False}


def acted(options, brain, segments, make):
    env = build(options["env"], "env").unwrapped
    tasks = make_tasks(options, env, segments, brain.frames != "render")
    agent = make_agent(options, brain, torch.device("cpu"))
    rules = make_rules(options, brain.codec.block, brain.frames)
    episodes = run_episodes(make_envs(make, len(tasks)), agent, tasks, rules)
    return np.stack([episode.actions for episode in episodes]), episodes


def test_the_planner_sees_neither_state_nor_success(tmp_path):
    model = tiny_model(tmp_path)
    options, env, segments, _ = case_of(
        f"model={model}", *QUICK, "budget=10", "stop_on_success=false", "env.render_size=64"
    )
    brain = load_brain(options, env.action_space, torch.device("cpu"), torch.float32)
    honest, _ = acted(options, brain, segments, lambda: build(options["env"], "env"))
    poisoned, episodes = acted(
        options, brain, segments, lambda: Poisoned(build(options["env"], "env"))
    )
    assert np.array_equal(honest, poisoned) and np.abs(honest).max() > 0
    assert (episodes[0].metrics["pos_err"] == -1e6).all(), "the poison was there"


def test_the_simulator_as_the_model_is_the_declared_exception():
    options, env, *_ = case_of("model=simulator")
    brain = load_brain(options, env.action_space, torch.device("cpu"), torch.float32)
    assert brain.frames == options["task"]["state"] and brain.about["family"] == "simulator"


# What a run writes and refuses


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    plan.main(options_of(*QUICK, "model=simulator", "protocol=lewm", "episodes=2", "budget=5",
                         "replan_every=1", "planner_seed=4", f"out={out}"))  # fmt: skip
    return out


def test_results_carry_protocol_preset_versions_and_seeds(run):
    listed = read_episode_list(run / "episodes_list.json")
    episode = load_episode(run / "episodes" / "episode_0001.npz")
    records = [json.loads((run / name).read_text()) for name in ("config.json", "result.json")]
    for record in (*records, episode.config):
        test = record["protocol"]
        assert test["label"] == "lewm*(budget,episodes,planner_seed,replan_every)"
        assert len(test["hash"]) == 64 and (test["seed"], test["planner_seed"]) == (42, 4)
        assert record["preset"]["chosen"]["planner"] == "random_shooting"
        assert record["preset"]["chosen"]["protocol"] == "lewm"
        assert "torch" in record["versions"]
    settings = records[0]["preset"]["settings"]
    assert settings == content_hash(records[0]["options"]["planner"])
    assert {record["protocol"]["hash"] for record in records} == {test["hash"]}
    assert (
        content_hash([*json.loads((run / "episodes_list.json").read_text())["episodes"]])
        == (test["episodes_hash"])
    )
    assert listed.options["episodes"] == 2 and tally([episode])[1] == 1


def test_a_list_of_a_run_gives_the_run_again(run, tmp_path, capsys):
    given = (*QUICK, "model=simulator", "protocol=lewm", "budget=5", "replan_every=1")
    plan.main(options_of(*given, "planner_seed=4", f"episode_list={run / 'episodes_list.json'}",
                         f"out={tmp_path / 'again'}"))  # fmt: skip
    for index in range(2):
        one, other = (load_episode(at / "episodes" / f"episode_{index:04d}.npz")
                      for at in (run, tmp_path / "again"))  # fmt: skip
        assert np.array_equal(one.actions, other.actions) and one.seed == other.seed
        assert one.config["protocol"]["hash"] == other.config["protocol"]["hash"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["protocol=nope"], ["protocol/nope", "lewm", "own"]),
        (["protocol.budget=60"], ["protocol.budget=60", "write budget=60"]),
        (["success_at=sometimes"], ["success_at='sometimes'", "any_step", "segment_end"]),
        (["replace_presolved=maybe"], ["replace_presolved='maybe'", "true or false"]),
        (["seed=half"], ["seed='half'", "whole"]),
        (["planner_seed=1.5"], ["planner_seed=1.5", "whole"]),
        (["episode_list=absent.json"], ["episode_list=absent.json", "not a list"]),
        (["goal_offset=500"], ["goal_offset=500", "1..100"]),
    ],
)
def test_plan_refuses_a_wrong_protocol_in_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plan", "model=simulator", *QUICK, *arguments])
    with pytest.raises(SystemExit) as status:
        launch(plan.main, "plan")
    said = capsys.readouterr().err
    assert status.value.code == 1 and said.startswith("error: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert not list(tmp_path.iterdir())
