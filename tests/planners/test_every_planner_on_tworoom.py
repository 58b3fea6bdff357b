"""Every preset brings the dot to goals 25 steps ahead, where the model is exact.

What a planner misses here is its own: ``rooms.py`` prints the table over more episodes.
"""

import pytest
import torch

from planners.rooms import NAMES, make_planner, run  # isort: skip

torch.set_num_threads(1)
# small changes where a preset is for another cost or action, and less to do for those that are slow
CHANGES = {
    # at 1, in the cost's own units, the price of control outweighs this cost
    "mppi_it": {"horizon": 5, "temperature": 0.1},
    # steps of 1 are for a mean over latents; a single restart may end at the wall
    "gd_dino_wm": {"iterations": 15, "learning_rate": 0.1, "num_samples": 8},
    "gradient": {"iterations": 10},
    "adam_swm": {"iterations": 10},
    "random_shooting": {"num_samples": 300},
    "cmaes": {"iterations": 15},
    "vjepa2_ac_function": {"iterations": 20},
}


@pytest.mark.parametrize("name", NAMES)
def test_reaches_goals_through_the_door(name):
    success, _ = run(make_planner(name, **CHANGES.get(name, {})), 8)
    assert success.all(), f"{success.sum()} of 8"


def test_the_exam_can_be_failed():
    """Nearly random actions reach few of the goals."""
    success, _ = run(make_planner("random_shooting", num_samples=2), 16)
    assert success.mean() < 0.5
