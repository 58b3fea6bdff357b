"""The README's loop for a real robot runs with a bundle of an arm."""

import re
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box

from jepa_wm.experiments.setup import load_agent

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_robot_loop_runs(arm, capsys):
    (code,) = (block for block in re.findall(r"```py\n(.*?)```", README, re.S) if "Robot" in block)
    assert code.count("vjepa2-ac.gguf") == 1
    code = code.replace("vjepa2-ac.gguf", str(arm())).replace(
        'planner="cem_ac"', 'planner="cem_ac_notebook"'
    )
    exec(code, {"__name__": "example"})
    assert "m from the goal" in capsys.readouterr().out


def test_an_arms_model_acts_in_its_own_units_and_ignores_small_gripper_motions(arm):
    most = np.array([0.02] * 3 + [0.5] * 3 + [1.0], np.float32)
    agent = load_agent(arm(), Box(-most, most), torch.device("cpu"), planner="cem_ac_notebook")
    actions = agent.codec.decode([[0.01, -0.5, 0, 0, 0, 0, 0.2], [0, 0, 0, 0, 0, 0, 0.3]])
    expected = [[0.01, -0.02, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0.3]]
    torch.testing.assert_close(actions, torch.tensor(expected))
    assert agent.chunk == 25
