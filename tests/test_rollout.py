"""The rollout command: what it measures is right, what it writes is there, what it refuses."""

import json
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from control.point_mass import BOX, SPEED, PointModel
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from jepa_wm import rollout
from jepa_wm.bundle.reader import find_bundle
from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Context
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.observer import Observer
from jepa_wm.experiments.paths import Paths, make_paths, read_actions, record_play
from jepa_wm.experiments.rollout_numbers import measure, random_pair
from jepa_wm.experiments.rollout_study import make_probe
from jepa_wm.experiments.rollouts import Bank, fit_plane, imagine, make_bank
from jepa_wm.experiments.setup import Brain, load_brain
from jepa_wm.launch import build, launch
from jepa_wm.models import load_world_model

CPU = torch.device("cpu")
FAST = ["rollouts=3", "bank=16", "columns=2", "threads=1", "device=cpu"]


def options(*overrides):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        composed = compose("rollout", overrides=[*FAST, *overrides])
    return OmegaConf.to_container(composed, resolve=True)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["rollout", *FAST, *arguments])
    launch(rollout.main, "rollout")


def eyes(given):
    """Model, observer and environment of options, as the command makes them."""
    env = build(given["env"], "env").unwrapped
    brain = load_brain(given, env.action_space, CPU, torch.float32)
    return brain, Observer(brain, env, given["task"].get("proprio"), CPU)


class Plane:
    """An environment whose picture is the place itself, as a shade."""

    def render_state(self, state):
        shade = np.uint8(np.clip(128 + 60 * state[0], 0, 255))
        return np.full((4, 4, 3), shade, np.uint8)


class Drifting(PointModel):
    """Moves as the plane does, and 0.3 too far to the right in every block."""

    def rollout(self, context, actions):
        drift = torch.tensor([0.3, 0.0]) * torch.arange(1, actions.shape[2] + 1)[:, None]
        return super().rollout(context, actions) + drift


def plane(model):
    codec = ActionCodec(block=2, mean=np.zeros(2), std=np.ones(2), low=BOX[0], high=BOX[1])
    brain = Brain(model, lambda goal: None, codec, "state", {"name": "plane"})
    return codec, Observer(brain, Plane(), None, CPU)


def walks(count, history, blocks, seed=0):
    """Paths of a point that moves by SPEED x action."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (count, 2 * (history - 1 + blocks), 2)).astype(np.float32)
    places = rng.normal(size=(count, 1, 2)) + SPEED * np.cumsum(actions, 1, dtype=np.float64)
    starts = places[:, :1] - SPEED * actions[:, :1]
    states = np.concatenate([starts, places[:, 1::2]], 1)
    split = 2 * (history - 1)
    return Paths(states, actions[:, :split], actions[:, split:], history)


@pytest.mark.parametrize("history", [1, 3])
def test_a_model_that_is_right_predicts_what_is_encoded(history):
    codec, observer = plane(PointModel())
    found = imagine(codec, observer, walks(4, history, 5))
    assert found.predicted.shape == (4, 6, 2) and found.steps.tolist() == [0, 2, 4, 6, 8, 10]
    np.testing.assert_allclose(found.predicted, found.encoded, atol=1e-5)
    np.testing.assert_array_equal(found.predicted[:, 0], found.encoded[:, 0])


@pytest.mark.parametrize(("kind", "a_block"), [("l2", 0.3 / np.sqrt(2)), ("l1", 0.15)])
def test_a_drift_is_measured_as_what_it_is(kind, a_block):
    codec, observer = plane(Drifting())
    found = imagine(codec, observer, walks(4, 1, 5))
    rng = np.random.default_rng(1)
    states = rng.normal(size=(12, 9, 2))
    bank = make_bank(states, 50, observer)
    assert len(bank.z) == 50 and set(np.bincount(bank.episodes)[:10]) == {5}
    given = {"distance": kind, "nearest": 2, "show": 1, "seed": 0}
    numbers = measure(found, bank, None, given)
    expected = np.tile(a_block * np.arange(6), (4, 1))
    np.testing.assert_allclose(numbers.distances["predicted"], expected, atol=1e-5)
    gaps = found.encoded - found.encoded[:, :1]
    norm = np.sqrt(np.square(gaps).mean(-1)) if kind == "l2" else np.abs(gaps).mean(-1)
    np.testing.assert_allclose(numbers.distances["nothing predicted"], norm, atol=1e-6)
    # nearest frames by brute force
    away = bank.z[None] - found.predicted[1][:, None]
    away = np.sqrt(np.square(away).mean(-1)) if kind == "l2" else np.abs(away).mean(-1)
    np.testing.assert_array_equal(numbers.nearest.rows, away.argsort(1)[:, :2])
    np.testing.assert_allclose(numbers.nearest.distances, np.sort(away, 1)[:, :2], rtol=1e-6)
    np.testing.assert_array_equal(numbers.nearer[1], (away < expected[1][:, None]).sum(1))


def test_random_pairs_are_of_different_episodes():
    z, episodes = np.repeat([[0.0], [1.0], [3.0]], 4, 0), np.repeat([0, 1, 2], 4)
    bank = Bank(z, episodes, np.zeros((12, 2, 2, 3), np.uint8), z)
    assert random_pair(bank, "l1", 0) == 2.0  # of 1, 2 and 3, never the 0 within an episode
    alone = replace(bank, episodes=np.zeros(12, int))
    assert np.isnan(random_pair(alone, "l1", 0))


def test_the_plane_is_that_of_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 7)) * np.array([5, 3, 1, 0.5, 0.1, 0.1, 0.0])
    centre, axes, shares = fit_plane(z)
    _, values, rows = np.linalg.svd(z - z.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(axes @ rows[:2].T), np.eye(2), atol=1e-7)
    np.testing.assert_allclose(shares, (values**2 / (values**2).sum())[:2])
    np.testing.assert_allclose(centre, z.mean(0))


def test_recorded_paths_are_the_simulators():
    """States, actions and context of actions=play belong together."""
    given = options("model=simulator", "history=3", "horizon=2")
    brain, observer = eyes(given)
    played, others = record_play(given, 2)
    paths = make_paths(given, brain, observer, played)
    assert paths.states.shape == (3, 5, 7) and paths.past.shape == (3, 10, 2)
    assert not any((others == episode).all((1, 2)).any() for episode in played[0])
    for row in range(3):
        at = np.flatnonzero((played[0][row] == paths.states[row, 0]).all(1))[0]
        np.testing.assert_array_equal(paths.states[row], played[0][row, at : at + 21 : 5])
        done = np.concatenate([paths.past[row], paths.ahead[row]])
        np.testing.assert_array_equal(done, played[1][row, at : at + 20])


def test_the_context_reaches_the_model():
    given = options("history=2", "horizon=3", "rollouts=1")
    brain, observer = eyes(given)
    played, _ = record_play(given, 1)
    paths = make_paths(given, brain, observer, played)
    found = imagine(brain.codec, observer, paths)
    world = load_world_model(find_bundle("lewm.gguf"), CPU)
    frames = torch.from_numpy(observer.frames(paths.states[:, :2]))
    z = world.encode(world.preprocess(frames))
    past, ahead = (brain.codec.encode(x) for x in (paths.past, paths.ahead))
    expected = world.rollout(Context(z, past), ahead[:, None])[0, 0]
    np.testing.assert_allclose(found.predicted[0, 1:], expected, atol=1e-5)
    without = world.rollout(Context(z[:, 1:], past[:, :0]), ahead[:, None])[0, 0]
    assert not np.allclose(found.predicted[0, 1:], without, atol=1e-3)


@pytest.mark.parametrize("source", ["zero", "random", "plan", "file"])
def test_other_actions_come_true_in_the_simulator(source, tmp_path):
    given = options("model=simulator", "planner.iterations=1", "planner.num_samples=4",
                    "planner.num_elites=2", "goal_offset=15")  # fmt: skip
    actions = np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(10, 2)
    np.save(tmp_path / "a.npy", actions)
    given["actions"] = str(tmp_path / "a.npy") if source == "file" else source
    brain, observer = eyes(given)
    played, _ = record_play(given, 1)
    paths = make_paths(given, brain, observer, played)
    blocks = {"zero": 10, "random": 10, "plan": 3, "file": 2}[source]
    assert paths.ahead.shape == (3, 5 * blocks, 2) and paths.states.shape == (3, 1 + blocks, 7)
    found = imagine(brain.codec, observer, paths)
    np.testing.assert_allclose(found.predicted, found.encoded, atol=1e-4)
    moved = np.abs(paths.ahead).max()
    assert (moved == 0) == (source == "zero")
    if source == "file":
        np.testing.assert_array_equal(paths.ahead[2], actions)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((10, 3), np.float32), r"\[10, 3\]; wanted numbers \[K,2\]"),
        (np.zeros((7, 2), np.float32), "multiple of the block of 5"),
        (np.zeros((0, 2), np.float32), r"\[0, 2\]"),
        (np.full((5, 2), np.nan, np.float32), "step 0 is"),
        (np.array([[0, 0]] * 4 + [[0, 3.0]]), r"step 4 is \[0.0, 3.0\], outside"),
        (np.array([["a", "b"]] * 5), "wanted numbers"),
        (np.array([[{}, {}]] * 5, dtype=object), "cannot be read"),
    ],
)
def test_files_that_hold_no_actions_are_refused(array, words, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ConfigError, match=words):
        read_actions(str(tmp_path / "a.npy"), *BOX, 5)


def test_an_archive_of_arrays_is_no_array_whatever_its_name(tmp_path):
    with (tmp_path / "a.npy").open("wb") as sink:
        np.savez(sink, a=np.zeros((10, 2)))
    with pytest.raises(ConfigError, match="archive"):
        read_actions(str(tmp_path / "a.npy"), *BOX, 5)


@pytest.mark.parametrize(("rollouts", "counts"), [(1, (1, 2)), (9, (8, 2)), (99, (8, 2))])
def test_a_short_recording_is_shared_between_rollouts_and_bank(rollouts, counts):
    """The example has 3 episodes of 8 steps; no frame of the bank is of an episode imagined."""
    given = options("env=recorded", f"rollouts={rollouts}")
    (states, actions), others = record_play(given, 125)
    assert (len(states), len(others)) == counts and len(actions) == len(states)
    every = {episode.tobytes() for episode in states}
    assert not any(episode.tobytes() in every for episode in others)
    with pytest.raises(ConfigError, match="play gives"):
        record_play(given | {"show": rollouts}, 125)


def test_a_recording_of_two_episodes_leaves_none_to_score_a_probe_on(
    monkeypatch, capsys, tmp_path, arm
):
    poses = np.zeros((2, 4, 7)) + 0.01 * np.arange(8).reshape(2, 4, 1)
    frames = np.random.default_rng(0).integers(0, 255, (2, 4, 32, 48, 3), dtype=np.uint8)
    np.savez(tmp_path / "two.npz", observations=frames, states=poses)
    run(monkeypatch, "env=recorded", f"file={tmp_path / 'two.npz'}", f"model={arm()}", "bank=8",
        f"out={tmp_path / 'out'}")  # fmt: skip
    said = capsys.readouterr().out
    assert "probe     none: the bank is of one episode" in said and "3 rollouts" in said
    found = json.loads((tmp_path / "out" / "rollout.json").read_text())
    assert found["probe_r2"] == {} and found["random_pair"] is None and found["bank"] == 4
    assert not (tmp_path / "out" / "readings.pdf").exists()


def test_the_command_with_the_simulator_as_the_model(monkeypatch, capsys, tmp_path):
    run(monkeypatch, "env=tworoom", "model=simulator", "horizon=4", "bank=40", f"out={tmp_path}")
    said = capsys.readouterr().out
    assert "recorded play: 4 blocks of 5 env steps" in said
    assert "Imagined pixels are unavailable: the model predicts latents and has no decoder." in said
    found = json.loads((tmp_path / "rollout.json").read_text())
    assert found["steps"] == [0, 5, 10, 15, 20] and found["bank"] == 40
    assert max(found["distance"]["predicted"]["median"]) < 1e-3 * found["random_pair"]
    assert max(found["frames_nearer_than_the_true_one"]["q75"]) == 0
    assert found["probe_r2"]["agent"] > 0.999
    assert max(found["probe_error"]["agent"]["predicted"]["median"]) < 0.01  # px
    names = {"filmstrip", "distances", "plane", "readings", "overlay"}
    assert {p.stem for p in tmp_path.glob("*.pdf")} == names
    assert {p.stem for p in tmp_path.glob("*.png")} == names
    page = (tmp_path / "summary.md").read_text()
    assert all(f"({name}.png)" in page for name in names) and "Imagined pixels" in page
    with pytest.raises(SystemExit):
        run(monkeypatch, "model=simulator", f"out={tmp_path}")
    assert "already holds a run" in capsys.readouterr().err


def test_the_bundled_model_predicts_play(monkeypatch, capsys, tmp_path):
    run(monkeypatch, "rollouts=4", "bank=160", "horizon=3", f"out={tmp_path}")
    found = json.loads((tmp_path / "rollout.json").read_text())
    predicted, still = (found["distance"][name]["median"][-1]
                        for name in ("predicted", "nothing predicted"))  # fmt: skip
    assert predicted < 0.3 * still < 0.6 * found["random_pair"]
    assert min(found["probe_r2"].values()) > 0.9
    assert (tmp_path / "attention.pdf").stat().st_size > 5000
    assert not (tmp_path / "similarity.pdf").exists()


def test_a_model_of_tokens_shows_which_patches_are_right(monkeypatch, capsys, tmp_path, arm):
    run(monkeypatch, "env=reach", f"model={arm()}", "rollouts=2", "horizon=2", f"out={tmp_path}")
    assert "2 blocks of 1 env steps" in capsys.readouterr().out
    assert (tmp_path / "similarity.pdf").stat().st_size > 5000
    assert not (tmp_path / "attention.pdf").exists()


def test_a_decoder_is_trained_kept_used_again_and_belongs_to_its_model(
    monkeypatch, capsys, tmp_path, tiny
):
    fast = ["rollouts=2", "horizon=2", "recipe.frames=25", "recipe.steps=3", "recipe.batch=4"]
    run(monkeypatch, *fast, "train=decoder", f"out={tmp_path / 'a'}")
    said = capsys.readouterr().out
    assert "Decoded pixels are the decoder's, not the model's" in said and "PSNR" in said
    assert "unavailable" not in (tmp_path / "a" / "summary.md").read_text()
    kept = f"decoder={tmp_path / 'a' / 'decoder.npz'}"
    run(monkeypatch, *fast, kept, f"out={tmp_path / 'b'}")
    first, second = (json.loads((tmp_path / name / "rollout.json").read_text())["decoder"]
                     for name in "ab")  # fmt: skip
    assert first["psnr_predicted"] == second["psnr_predicted"]
    assert first["psnr_encoded"]["median"][0] > 15
    assert not (tmp_path / "b" / "decoder.npz").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(monkeypatch, *fast, kept, f"model={tiny('lewm')}", f"out={tmp_path / 'c'}")
    assert "belongs to another model" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=null", "rollouts=0"], ["model is required", "rollouts=0"]),
        (["model=1e5"], ["quote"]),
        (["actions=jump"], ["actions=jump", "play", "FILE.npy"]),
        (["horizon=0"], ["horizon=0"]),
        (["horizon=21"], ["horizon=21", "actions are known for 20 blocks of 5"]),
        (["env=reach", "model=vjepa2-ac.gguf", "horizon=4", "history=2"], ["4 frame slots"]),
        (["env=reach"], ["action codec", "2 numbers", "7"]),
        (["show=3"], ["show=3", "rollouts=3"]),
        (["distance=cosine"], ["distance='cosine'", "l2 or l1"]),
        (["train=yes"], ["train='yes'", "decoder"]),
        (["decoder=absent.npz"], ["absent.npz", "train=decoder"]),
        (["decoder=a.npz", "train=decoder"], ["one of them"]),
        (["actions=plan", "horizon=3"], ["planner.horizon=3"]),
        (["env=recorded", "model=vjepa2-ac.gguf", "actions=zero"], ["no simulator", "play"]),
        (["bank=2"], ["bank=2", ">= 8"]),
        (["goal_offset=x", "actions=plan"], ["goal_offset='x'", ">= 1"]),
        (["threads=0"], ["threads=0", "null"]),
        (["probe.reads=[{label: x, at: [9], unit: px}]"], ["x at numbers outside the state"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(arguments, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = [] if arguments[0].startswith("model=") else ["model=lewm.gguf"]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *given, *arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 1, said
    line = said.splitlines()[-1].rpartition("\r")[2]
    assert "error: " in line and all(word in line for word in words), said
    assert not list(tmp_path.iterdir())


def test_a_model_of_other_actions_is_named(monkeypatch, capsys, tiny):
    untold = {f"jepa_wm.action.{name}": None for name in ("block", "mean", "std", "low", "high")}
    other = tiny("lewm", **untold, **{"jepa.pred.action_dim": 6})
    with pytest.raises(SystemExit):
        run(monkeypatch, f"model={other}")
    assert "takes 6 action numbers" in capsys.readouterr().err


def test_environments_without_a_probe_of_their_own_read_what_the_task_names(monkeypatch, tmp_path):
    given = options("env=tworoom", "model=simulator")
    given["probe"] = None
    _, observer = eyes(given)
    bank = make_bank(record_play(given, 6)[1], 24, observer)
    probe = make_probe(given, bank)
    assert probe.r2["agent"] > 0.999
    assert make_probe(given | {"task": {"targets": None}}, bank) is None


def test_gymnasium_environments_draw_any_state():
    """What the command asks of an environment, and nothing more."""
    for name in ("pusht", "reach", "tworoom", "wall", "maze"):
        env = build(options(f"env={name}")["env"], "env").unwrapped
        assert isinstance(env, gymnasium.Env) and callable(env.render_state), name
