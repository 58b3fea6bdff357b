"""The arm planners of conf/planner: equal to the published one, given its own noise."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import RolloutCost
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.launch import preset, preset_node
from jepa_wm.models.pose import compose
from jepa_wm.planners.cem import CEM
from jepa_wm.planners.constraints import Limit, Pin
from jepa_wm.planners.mppi import MPPI

GOLDEN = np.load(Path(__file__).parent / "golden" / "cem_ac.npz")
WIDE = (torch.full((7,), -torch.inf), torch.full((7,), torch.inf))
BOX = torch.tensor([1.0] * 7)
CPU = torch.device("cpu")
ARMS = ("cem_ac", "icem_ac", "vjepa2_ac")
PUBLISHED = {
    "function": "vjepa2_ac_function",
    "wrapper": "vjepa2_ac",
    "notebook": "vjepa2_ac_notebook",
}
FOLDER = files("jepa_wm.conf").joinpath("planner")
PRESETS = sorted(f.name[:-5] for f in FOLDER.iterdir() if f.name[:-5].startswith(ARMS))
ZONE = torch.tensor([0.0] * 6 + [0.25])


@dataclass(frozen=True, kw_only=True)
class Replay(CEM):
    """A CEM whose noise is given, [iterations,S,H,A], and used up in order."""

    noise: Iterator

    def _noise(self, mean, generators, count):
        return next(self.noise)[None]


class ToyArm:
    """Dynamics of the golden file: z' = tanh(z + action W + pose V), the pose moves along."""

    action_dim = 7
    history = 1

    def rollout(self, context, actions):
        weights, of_pose = (torch.from_numpy(GOLDEN[k]) for k in ("of_action", "of_pose"))
        S, found = actions.shape[1], []
        z, pose = context.z[:, None, -1], context.proprio[:, None, -1].expand(-1, S, -1)
        for action in actions.unbind(2):
            z = torch.tanh(z + action[:, :, None] @ weights + pose[:, :, None] @ of_pose)
            pose = compose(pose, action)
            found.append(z)
        return torch.stack(found, 2)


def arm_cost():
    def goal(z):
        return GoalDistance(z, norm="l1", reduce="mean", steps="last")

    z, pose, goal_z = (torch.from_numpy(GOLDEN[k])[None] for k in ("z", "pose", "goal"))
    context = Context(z[:, None], torch.zeros(1, 0, 7), pose[:, None])
    return RolloutCost(ToyArm(), goal, goal_z, context)


def replayed(case, planner, **constraints):
    """Plan with the noise of a golden case; rotations, which it does not draw, get none."""
    drawn = torch.from_numpy(GOLDEN[f"{case}.noise"])  # [I,H,S,4]
    rounds, H, S, _ = drawn.shape
    noise = torch.zeros(rounds, S, H, 7)
    noise[..., [0, 1, 2, 6]] = drawn.transpose(1, 2)
    settings = {one.name: getattr(planner, one.name) for one in fields(planner)}
    settings |= {"horizon": H, "num_samples": S, "iterations": rounds, "noise": iter(noise)}
    settings["constraints"] = dict(planner.constraints) | constraints
    again = Replay(**settings)
    start = again.start(1, 7, CPU)
    return again.plan(arm_cost(), start, WIDE, [torch.Generator()]).actions[0]


def executed(plan):
    """What is sent to the arm: small gripper motions are none."""
    inf = [torch.inf] * 7
    codec = ActionCodec(
        block=1, mean=[0] * 7, std=[1] * 7, low=[-x for x in inf], high=inf, dead_zone=ZONE
    )
    return codec.decode(plan)


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_preset_is_its_source_given_the_same_noise(case):
    plan = executed(replayed(case, preset("planner", PUBLISHED[case])))
    error = np.abs(plan.numpy() - GOLDEN[f"{case}.plan"]).max()
    assert error < 1e-6, f"{error:.1e}"


def test_pins_and_the_closing_gripper_are_the_published_ones():
    wrapper = preset("planner", "vjepa2_ac")
    held = dict(wrapper.constraints)
    pinned = replayed("pinned", wrapper, axes=Pin(values={2: -0.03, 0: 0.09}))
    assert np.abs(executed(pinned).numpy() - GOLDEN["pinned.plan"]).max() < 1e-6
    closing = replayed("closing", wrapper, close_gripper=replace(held["close_gripper"], step=1))
    assert np.abs(executed(closing).numpy() - GOLDEN["closing.plan"]).max() < 1e-6
    assert closing[0, 6] < 0.75 < closing[1, 6] < 1, "the mean follows, as published"


def candidates(planner, action_dim=7):
    """Every candidate of a solve [.., H, A] and its plan."""
    seen = []

    def cost(actions):
        seen.append(actions)
        return (actions - 0.3).square().sum((2, 3))

    start = planner.start(1, action_dim, CPU)
    plan = planner.plan(cost, start, (-BOX, BOX), [torch.Generator().manual_seed(0)])
    return torch.cat([one.flatten(0, 1) for one in seen]), plan


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_stays_within_its_limits(name):
    planner = preset("planner", name)
    found, plan = candidates(planner)
    xyz = dict(planner.constraints)["xyz"]
    reach = found[..., :3].abs()
    size = reach.amax() if xyz.shape == "box" else reach.sum(-1).amax()
    assert xyz.limit * 0.999 < size <= xyz.limit * (1 + 1e-6)
    assert (found[..., 3:6] == 0).all() and (plan.std[..., 3:6] == 0).all(), "rotations"
    assert found[..., 6].abs().amax() == 0.75
    assert (plan.actions - 0.3).square().mean() < 0.09, "towards the goal"


def test_rotations_can_be_sampled():
    planner = replace(preset("planner", "cem_ac"), init_std=(0.05,) * 3 + (0.1,) * 3 + (1.0,))
    found, plan = candidates(planner)
    assert (found[..., 3:6].std((0, 1)) > 0.02).all()
    assert (plan.actions[..., 3:6] > 0).all()


def test_other_planners_take_the_same_limits():
    node = preset_node("planner", "mppi") | {"init_std": [0.1] * 7, "horizon": 2}
    settings = {k: v for k, v in node.items() if k != "_target_"}
    limits = dict(preset("planner", "cem_ac").constraints)
    found, _ = candidates(MPPI(**settings | {"constraints": limits}))
    assert found[..., :3].abs().amax() == torch.tensor(0.075)


def test_the_box_of_the_environment_holds_beside_the_limits():
    planner = replace(preset("planner", "cem_ac"), iterations=2)
    seen = []

    def cost(actions):
        seen.append(actions)
        return actions.sum((2, 3))

    low = torch.tensor([-0.01] * 7)
    planner.plan(cost, planner.start(1, 7, CPU), (low, -low), [torch.Generator()])
    assert torch.cat([one.flatten() for one in seen]).abs().max() == torch.tensor(0.01)


def test_a_limit_is_the_nearest_point():
    points = torch.tensor(
        [[0.2, 0.0, 0.0], [0.1, -0.1, 0.0], [0.02, 0.03, -0.01], [0.9, 0.1, -0.1]]
    )
    ball = Limit(dims=[0, 1, 2], limit=0.1, shape="l1")
    expected = [[0.1, 0.0, 0.0], [0.05, -0.05, 0.0], [0.02, 0.03, -0.01], [0.1, 0.0, 0.0]]
    torch.testing.assert_close(ball(points), torch.tensor(expected))
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(200, 3, generator=generator)
    near = ball(many)
    assert near.abs().sum(-1).max() <= 0.1 + 1e-6
    inside = torch.randn(1, 500, 3, generator=generator)
    inside = 0.1 * inside / inside.abs().sum(-1, keepdim=True)
    nearest = (many[:, None] - inside).norm(dim=-1).amin(1)
    assert ((many - near).norm(dim=-1) <= nearest + 1e-6).all()
    assert torch.equal(many, torch.randn(200, 3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(dims=[0, 0], limit=-1, shape="ball"), "limit=-1 .*; shape='ball' must be"),
        (lambda: Limit(dims=[-1], limit=0.1, shape="box"), r"\[-1\] must be different dimensions"),
        (lambda: Pin(values={1: "up"}), "Pin: values: 'up' must be a finite number"),
        (lambda: Pin(values={1.5: 0.0}), "whole numbers"),
    ],
)
def test_impossible_constraints_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_arms_planner_on_another_action_is_refused():
    planner = replace(preset("planner", "cem_ac"), init_std=1.0, momentum=0.0)
    with pytest.raises(ValueError, match=r"constraint gripper is on dimension 6, .* has 4"):
        planner.start(1, 4, CPU)
