"""A robot's loop beside the README's example: units, limits and the gripper's dead zone."""

import numpy as np
import torch
from gymnasium.spaces import Box

from jepa_wm.experiments.setup import load_agent


def test_an_arms_model_acts_in_its_own_units_and_ignores_small_gripper_motions(arm):
    most = np.array([0.02] * 3 + [0.5] * 3 + [1.0], np.float32)
    agent = load_agent(arm(), Box(-most, most), torch.device("cpu"), planner="vjepa2_ac_notebook")
    actions = agent.codec.decode([[0.01, -0.5, 0, 0, 0, 0, 0.2], [0, 0, 0, 0, 0, 0, 0.3]])
    expected = [[0.01, -0.02, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0.3]]
    torch.testing.assert_close(actions, torch.tensor(expected))
    assert agent.chunk == 25
