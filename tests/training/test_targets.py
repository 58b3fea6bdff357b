"""What a task says of its states reaches the state loss, the probes and the goal map."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import jepa_wm.conf
from jepa_wm.bundle.reader import Bundle
from jepa_wm.collect import CollectConfig, collect_chunk, prepare
from jepa_wm.errors import ConfigError
from jepa_wm.launch import build, preset_node
from jepa_wm.models import load_world_model
from jepa_wm.train import with_targets
from jepa_wm.training.dataset import DatasetInfo, PlayDataset
from jepa_wm.training.export import export
from jepa_wm.training.lewm import Trainer
from jepa_wm.training.loop import figures
from jepa_wm.training.targets import StatePart, StateTargets

CPU = torch.device("cpu")
TASKS = sorted((Path(jepa_wm.conf.__path__[0]) / "task").glob("*.yaml"))


def collection(folder, name):
    return CollectConfig(
        out=folder, episodes=4, steps=30, block=5, image_size=16, seed=3, workers=1, jitter=0.3,
        model=None, env=preset_node("env", name), task=preset_node("task", name),
    )  # fmt: skip


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rooms")
    config = collection(folder, "tworoom")
    info = prepare(config)
    replace(info, done=collect_chunk(config, 0, config.episodes)).save(folder)
    return PlayDataset(folder)


def test_a_collection_carries_its_tasks_targets_and_the_action_box(rooms, dataset):
    assert rooms.info.targets == preset_node("task", "tworoom")["targets"]
    assert [part["name"] for part in dataset.info.targets] == ["agent", "block", "angle"]
    assert (rooms.info.state_dim, rooms.info.action_low) == (2, [-1.0, -1.0])


def test_a_lewm_learns_from_another_environments_states(rooms, config, tmp_path):
    trainer = Trainer(config, rooms, None, tmp_path, CPU)
    states = torch.tensor([[[112.0, 60.0]]])
    assert trainer.network.targets(states).flatten().tolist() == [0.0, -1.0]
    terms, _ = trainer.losses(0)
    assert terms["state"].isfinite()
    trainer.run()
    found = figures(trainer.probe(windows=8))
    assert "r2_agent" in found and not {"r2", "r2_block"} & set(found)
    trainer.recalibrate()
    bundle = Bundle.open(export(trainer, tmp_path / "tiny.gguf"))
    assert bundle.get("general.name") == "lewm-tworoom-16px"
    assert bundle.get("jepa_wm.action.low") == (-1.0, -1.0)


def test_the_goal_map_turns_latents_into_states_in_tolerances(rooms, config, tmp_path):
    trainer = Trainer(config, rooms, None, tmp_path, CPU)
    trainer.run()
    trainer.recalibrate()
    trainer.network.eval()
    path = export(trainer, tmp_path / "tiny.gguf")
    goal_map = torch.tensor(Bundle.open(path).get("jepa_wm.goal.map")).view(2, -1)
    model, frames = load_world_model(path, CPU), torch.from_numpy(rooms.frames[:2].copy())
    with torch.no_grad():
        told = trainer.network.state_head(trainer.network.live(trainer.network.encode(frames)))
    apart = (model.encode(model.preprocess(frames)) @ goal_map.T).diff(dim=1)
    torch.testing.assert_close(apart, told.diff(dim=1) * 52 / 16, rtol=1e-3, atol=1e-3)


def test_states_nothing_is_known_of_want_no_state_loss(rooms, config, tmp_path):
    rooms = PlayDataset(rooms.folder)
    rooms.info = replace(rooms.info, targets=None)
    with pytest.raises(ConfigError, match=r"state_weight=2\.0, but its task has no targets"):
        Trainer(config, rooms, None, tmp_path, CPU)
    trainer = Trainer(replace(config, state_weight=0.0), rooms, None, tmp_path, CPU)
    trainer.run()
    assert trainer.probe(windows=8).r2 == {}
    trainer.recalibrate()
    assert Bundle.open(export(trainer, tmp_path / "tiny.gguf")).get("jepa_wm.goal.map") is None


def test_collections_from_before_are_known_and_can_be_continued(tmp_path):
    whole = collection(tmp_path, "pusht")
    info = prepare(whole)
    replace(info, targets=None, action_low=None, action_high=None).save(tmp_path)
    assert prepare(whole).done == 0  # the same collection still
    old = DatasetInfo.read(tmp_path)
    assert old.targets is None and with_targets(old).targets == info.targets
    other = replace(old, env="jepa_wm/Reach-v0 (reach)", state_dim=10)
    assert with_targets(other).targets is None
    with pytest.raises(ConfigError, match="another collection"):
        prepare(replace(whole, seed=4))


def test_play_in_choices_is_refused(tmp_path):
    config = collection(tmp_path, "tworoom")
    with pytest.raises(ConfigError, match=r"not in choices: Discrete\(5\)"):
        prepare(replace(config, env={**config.env, "action": "discrete"}))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"at": []}, "must name coordinates"),
        ({"at": [0, 1], "wraps": True}, "one angle with wraps"),
        ({"at": [0], "tolerance": 0.0}, "tolerance=0.0"),
        ({"at": [0], "spread": 0.0}, "spread=0.0"),
        ({"at": [0, 1], "offset": [0, 1]}, "go together"),
        ({"at": [0], "offset": [0], "turned_by": 1}, "must be two numbers"),
        ({"at": [7]}, r"reads numbers \[7\] of a state that has 2"),
        ({"at": [0], "wrap": True}, "wrap"),
    ],
)
def test_impossible_parts_are_refused(part, words):
    with pytest.raises(ConfigError, match=words):
        StateTargets([{"name": "x", "tolerance": 1.0} | part], 2)


def test_numbers_of_a_part_can_have_scales_of_their_own():
    part = StatePart(name="x", at=[0, 2], tolerance=0.5, centre=[1.0, 2.0], spread=[2.0, 4.0])
    assert part(torch.tensor([3.0, 9.0, 10.0])).tolist() == [1.0, 2.0]
    assert part.in_tolerances() == [4.0, 8.0]
    both = StateTargets([part.__dict__], 3)
    assert both.by_part(torch.tensor([0.2, 0.4])) == {"x": pytest.approx(0.3)}


TOLD = [path.stem for path in TASKS if "targets" in preset_node("task", path.stem)]


@pytest.mark.parametrize("name", TOLD)
def test_targets_of_play_are_about_unit_scale(name):
    task = preset_node("task", name)
    states = torch.from_numpy(build(task["play"], "play")(1, 40).states)
    told = StateTargets(task["targets"], states.shape[-1])(states)
    spread = told.flatten(0, -2).std(0)
    assert bool(((spread > 0.5) & (spread < 1.6)).all()), spread.tolist()
