"""Every option of every configuration composes, instantiates, and equals its constructor."""

import inspect
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import jepa_wm.conf
from jepa_wm.bundle.reader import Bundle
from jepa_wm.control.situation import Situation, informed
from jepa_wm.experiments.setup import make_objective
from jepa_wm.launch import build, preset

CONF = Path(jepa_wm.conf.__path__[0])
ROOTS = sorted(path.stem for path in CONF.glob("*.yaml"))


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(name, *overrides):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        return OmegaConf.to_container(compose(name, overrides=list(overrides)), resolve=True)


@pytest.mark.parametrize("name", ROOTS)
def test_every_root_composes(name):
    assert composed(name)


@pytest.mark.parametrize("env", options("env"))
@pytest.mark.parametrize("planner", options("planner"))
def test_every_combination_instantiates(env, planner):
    node = composed("plan", f"env={env}", f"planner={planner}")
    build(node["env"], "env").close()
    assert build(node["planner"], "planner").horizon >= 1
    assert set(node["task"]) >= {"success", "state", "measures", "play", "worlds"}


@pytest.mark.parametrize("objective", options("objective"))
def test_every_objective_scores(objective, tiny):
    """Whatever the environment and the planner: its file knows nothing of theirs."""
    bundle = Bundle.open(tiny("lewm"))
    node = composed("plan", f"objective={objective}")
    factory = make_objective(node["objective"], bundle, torch.device("cpu"))
    now = Situation(
        block=2, goal_proprio=torch.zeros(2, 7), predict=lambda a: a.new_ones(2, 5, 3, 7)
    )
    cost = informed(factory(torch.randn(2, 8)), now)(
        torch.randn(2, 5, 3, 8), torch.zeros(2, 5, 3, 4)
    )
    assert cost.shape == (2, 5) and cost.dtype == torch.float32


@pytest.mark.parametrize("planner", options("planner"))
def test_the_yaml_is_the_constructor(planner):
    """No value of a planner hides in code: the file names every field and no other."""
    node = OmegaConf.load(CONF / "planner" / f"{planner}.yaml")
    fields = set(inspect.signature(type(preset("planner", planner))).parameters)
    assert set(node) - {"_target_"} == fields


def test_every_env_has_a_task_file():
    assert set(options("env")) <= set(options("task"))


def test_model_is_a_value_and_no_group():
    assert not (CONF / "model").exists()
