"""weights=quantised: the same plans from less memory, in every command that loads a world model."""

import gymnasium
import pytest
import torch

from jepa_wm import energy, plan, rollout
from jepa_wm.bench import split_words
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_cells import plan_cells
from jepa_wm.experiments.setup import load_agent, load_brain, make_agent
from jepa_wm.launch import build, compose
from jepa_wm.models.quantised import QuantisedLinear

CPU = torch.device("cpu")
SMALL = ["planner.num_samples=12", "planner.num_elites=3", "planner.iterations=2"]
STATISTICS = {
    "jepa_wm.action.block": 5,
    "jepa_wm.action.mean": [0.0, 0.0],
    "jepa_wm.action.std": [0.3, 0.3],
    "jepa.pred.action_dim": 10,
}


def brain_and_plan(words, weights):
    """Plan once from what a reset environment shows to another of its states."""
    options, _ = compose("plan", [*words, f"weights={weights}", *SMALL])
    env = build(options["env"], "env").unwrapped
    brain = load_brain(options, env.action_space, CPU, torch.float32)
    agent = make_agent(options, brain, CPU)
    _, info = env.reset(seed=3)
    agent.reset(env.render_state(info["goal_state"])[None], seeds=[0])
    agent.act(env.render()[None], info["proprio"][None] if "reach" in words[0] else None)
    return brain, agent.last_plan


@pytest.mark.parametrize("env", ["pusht", "reach"])
def test_plans_are_the_same_bit_for_bit(tiny, arm, env):
    path = tiny("lewm", "q8_0", **STATISTICS) if env == "pusht" else arm("q8_0")
    planner = ["planner=cem"] if env == "pusht" else ["planner=cem_ac"]
    words = [f"env={env}", f"model={path}", *planner]
    (plain, wanted), (kept, found) = (brain_and_plan(words, w) for w in ("expanded", "quantised"))
    assert torch.equal(found.actions, wanted.actions) and torch.equal(found.cost, wanted.cost)
    assert wanted.actions.any()
    count = sum(isinstance(part, QuantisedLinear) for part in kept.model.model.modules())
    assert count and kept.about["weights"].startswith(f"{count} of ")
    assert "weights" not in plain.about


def test_an_agent_of_python_keeps_them_too(tiny):
    env = gymnasium.make("jepa_wm.envs.pusht:jepa_wm/PushT-v0", render_mode="rgb_array")
    path = tiny("lewm", "q8_0", **STATISTICS)
    agent = load_agent(path, env.action_space, CPU, weights="quantised")
    layers = agent.world_model.model.modules()
    assert any(isinstance(part, QuantisedLinear) for part in layers)


@pytest.mark.parametrize("model", ["lewm.gguf", "simulator"])
@pytest.mark.parametrize("leaf", [plan, rollout, energy])
def test_another_way_is_refused_in_one_line(leaf, model, tmp_path):
    name = leaf.__name__.rpartition(".")[2]
    words = [f"model={model}", "weights=small", f"out={tmp_path / 'out'}", "env=pusht"]
    planner = ["planner=cem", "objective=goal"] if leaf is energy else []
    options, _ = compose(name, [*words, *planner])
    wanted = "^weights='small' is unknown; use expanded or quantised$"
    with pytest.raises(ConfigError, match=wanted):
        leaf.main(options)
    assert not (tmp_path / "out").exists()


def test_a_benchmark_knows_an_episode_whatever_its_weights(tiny):
    path = tiny("lewm", "q8_0", **STATISTICS)
    words = [f"model={path}", "weights=expanded,quantised", "baselines=false", "ceiling=true"]
    cells = plan_cells([*words, "episodes=1", *SMALL], split_words([])[0])
    one, other, ceiling = (planned.cell for planned in cells)
    assert [one.axes["weights"], other.axes["weights"]] == ["expanded", "quantised"]
    assert one.id.rpartition("-")[2] == other.id.rpartition("-")[2], "results do not depend on it"
    assert one.protocol == other.protocol == ceiling.protocol
    assert "weights" not in ceiling.axes
