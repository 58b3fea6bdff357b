"""Presets named after a source give its plan, given its noise on a toy cost of a path."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from jepa_wm.launch import preset
from jepa_wm.planners.cem import CEM
from jepa_wm.planners.constraints import Limit
from jepa_wm.planners.icem import ICEM
from jepa_wm.planners.mppi import MPPI
from jepa_wm.planners.predictive_sampling import PredictiveSampling

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "planners.npz")
CPU = torch.device("cpu")
WIDE = (torch.full((2,), -torch.inf), torch.full((2,), torch.inf))
ENDS = (torch.full((2,), -1.0), torch.full((2,), 1.0))
SMALL = {"lewm": 5, "dino_wm": 5, "jepa_wms": 5, "jepa_wms_droid": 5, "mppi_swm": 5}
SMALL |= {"jepa_wms_mppi": 8, "tdmpc2": 8}  # elites where the file was made with fewer samples


def golden(name):
    return torch.from_numpy(GOLDEN[name])


def cost(actions):
    """What make_planners.py calls cost."""
    reached = torch.tanh(actions.cumsum(-2) @ golden("weights"))
    return (reached - golden("goal")).square().sum((-1, -2))


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A planner whose noise is given, one [S,H,A] a round, and used up in order."""

    noise: Iterator

    def _noise(self, mean, generators, count):
        return next(self.noise)[None]


@dataclass(frozen=True, kw_only=True)
class ReplayCEM(Replay, CEM):
    pass


@dataclass(frozen=True, kw_only=True)
class ReplayMPPI(Replay, MPPI):
    waits: Iterator | None = None

    def _waits(self, generators, like):
        return next(self.waits)[None]


@dataclass(frozen=True, kw_only=True)
class ReplayPredictive(Replay, PredictiveSampling):
    pass


@dataclass(frozen=True, kw_only=True)
class ReplayICEM(Replay, ICEM):
    pass


KINDS = {CEM: ReplayCEM, MPPI: ReplayMPPI, ICEM: ReplayICEM}
KINDS[PredictiveSampling] = ReplayPredictive


def replayed(name, rounds=None, **changes):
    """Return the preset with the noise of its golden case, [I,S,H,A], and as many samples."""
    planner, noise = preset("planner", name), golden(f"{name}.noise")
    settings = {one.name: getattr(planner, one.name) for one in fields(planner)}
    settings |= {"horizon": noise.shape[2], "num_samples": noise.shape[1], "noise": iter(noise)}
    settings |= {"iterations": rounds or len(noise)}
    if name in SMALL:
        settings["num_elites"] = SMALL[name]
    return KINDS[type(planner)](**settings | changes)


def solve(planner, bounds=WIDE, start=None):
    start = planner.start(1, 2, CPU) if start is None else start
    return planner.plan(cost, start, bounds, [torch.Generator()])


def assert_close(found, name, index=...):
    expected = golden(name)[index]
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1)
    assert error < 1e-6, f"{name}: {error:.1e}"


@pytest.mark.parametrize("name", ["lewm", "dino_wm", "jepa_wms", "mppi_swm", "predictive_sampling"])
def test_a_preset_is_its_source_given_the_same_noise(name):
    assert_close(solve(replayed(name)).actions[0], f"{name}.plan")


def test_the_limits_of_jepa_wms_are_its_max_norms():
    limits = {f"dim {d}": Limit(dims=[d], limit=x, shape="box") for d, x in ((0, 0.5), (1, 0.3))}
    plan = solve(replayed("jepa_wms_droid", init_std=0.4, constraints=limits))
    assert_close(plan.actions[0], "jepa_wms_droid.plan")
    assert (plan.best.actions.abs().amax((0, 1)) <= torch.tensor([0.5, 0.3])).all()


def test_mppi_of_jepa_wms_leaves_the_same_mean():
    plan = solve(replayed("jepa_wms_mppi", waits=iter([torch.ones(8)])))
    assert_close(plan.mean.actions[0], "jepa_wms_mppi.plan")


def test_tdmpc2_over_two_solves():
    """Its policy's plans are among all rounds, the plan is an elite drawn by its own numbers."""
    noise, waits = golden("tdmpc2.noise"), golden("tdmpc2.waits")
    policy = golden("tdmpc2.policy")  # [solves,4,H,A]
    noise = torch.cat([torch.zeros(len(noise), policy.shape[1], *noise.shape[2:]), noise], 1)
    changes = {"num_samples": noise.shape[1], "noise": iter(noise), "waits": iter(waits)}
    planner = replayed("tdmpc2", rounds=len(noise) // 2, **changes)
    start = planner.start(1, 2, CPU)
    for index in range(2):
        plan = solve(planner, ENDS, replace(start, candidates=policy[index][None]))
        assert_close(plan.mean.actions[0], "tdmpc2.plan", index)
        assert_close(plan.actions[0, 0], "tdmpc2.first", index)
        start = planner.shift(plan, 1)


def test_information_theoretic_mppi_over_three_solves():
    """Bounds cut some noise off; the control cost matters from the second solve on."""
    planner = replayed("mppi_it", rounds=1, num_elites=20, init_std=[0.4, 0.9])
    start, box = planner.start(1, 2, CPU), tuple(0.9 * end for end in ENDS)
    for index in range(3):
        plan = solve(planner, box, start)
        assert_close(plan.actions[0], "mppi_it.plan", index)
        start = planner.shift(plan, 1)


def icem_rounds():
    """Noise of each round: where the source adds elites of the step before, theirs comes first."""
    counts = GOLDEN["icem_paper.counts"].tolist()
    draws = list(golden("icem_paper.noise").split(counts))
    assert counts == [40, 32, 25, 40, 3, 32, 25, 40, 3, 32, 25]
    return [*draws[:3], torch.cat([draws[4], draws[3]]), *draws[5:7],
            torch.cat([draws[8], draws[7]]), *draws[9:]]  # fmt: skip


def test_icem_over_three_steps():
    planner = preset("planner", "icem_paper")
    settings = {one.name: getattr(planner, one.name) for one in fields(planner)}
    planner = ReplayICEM(**settings | {"horizon": 4, "noise": iter(icem_rounds())})
    start, box = planner.start(1, 2, CPU), tuple(0.9 * end for end in ENDS)
    start = replace(start, std=start.std * 0.9)  # the source scales its spread by the range
    for index in range(3):
        plan = solve(planner, box, start)
        assert_close(plan.actions[0, 0], "icem_paper.first", index)
        assert_close(plan.candidates[0], "icem_paper.elites", index)
        start = planner.shift(plan, 1)
        assert_close(start.actions[0], "icem_paper.mean", index)
        start = replace(start, std=start.std * 0.9)
