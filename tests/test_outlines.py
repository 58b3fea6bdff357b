"""Outlines lie where the camera shows the things, in every environment that has a probe."""

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import jepa_wm.conf
from jepa_wm.envs.outlines import pusht
from jepa_wm.experiments.readings import make_readings
from jepa_wm.launch import build

PROBES = sorted(p.stem for p in (Path(jepa_wm.conf.__path__[0]) / "probe").glob("*.yaml"))


def options(env):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        composed = compose("rollout", overrides=[f"env={env}"])
    return OmegaConf.to_container(composed, resolve=True)


def parts(given):
    env = build(given["env"], "env").unwrapped
    play = build(given["task"]["play"], "task.play")
    return env, play(5, 4).states[:, 5]


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_reads_numbers_the_state_has(name):
    given = options(name)
    _, states = parts(given)
    assert make_readings(given["probe"]["reads"], states.shape[1])


@pytest.mark.parametrize("name", [n for n in PROBES if n != "recorded"])
def test_outlines_are_where_the_picture_changes(name):
    """Move one thing: the pixels that change lie around its outlines before and after."""
    given = options(name)
    env, states = parts(given)
    outline = build(given["probe"]["outline"], "probe.outline")
    start, other = states[0].copy(), states[0].copy()
    first = given["probe"]["reads"][0]["at"]
    other[first] = states[1][first]
    thing = next(iter(outline(start)))
    before, after = (env.render_state(state).astype(int) for state in (start, other))
    side = before.shape[0]
    y, x = np.nonzero(np.abs(before - after).sum(-1) > 60)
    for state in (start, other):
        curve = outline(state)[thing][:40] * side - 0.5  # of a ring, which comes first
        centre = curve.mean(0)
        radius = np.abs(curve - centre).max()
        near = np.hypot(x - centre[0], y - centre[1]) < 1.5 * radius + 2
        assert near.sum() > 10, f"{name}: nothing moves at the outline"
        gap = np.hypot(x[near].mean() - centre[0], y[near].mean() - centre[1])
        assert gap < radius / 2 + 1, f"{name}: what moves is {gap:.1f} px beside the outline"


def test_the_t_is_drawn_without_the_edge_within():
    """A turned T: the outline's corners are those of its rectangles, its inner edge is left out."""
    curve = 512 * pusht([100, 100, 200, 150, 0.0])["block"]
    drawn = curve[~np.isnan(curve).any(1)]
    assert drawn.min(0) == pytest.approx([140, 150]) and drawn.max(0) == pytest.approx([260, 270])
    inner = (np.abs(drawn[:, 1] - 180) < 0.5) & (np.abs(drawn[:, 0] - 200) < 14)
    assert not inner.any()
    turned = 512 * pusht([100, 100, 200, 150, np.pi / 2])["block"]
    drawn = turned[~np.isnan(turned).any(1)]
    assert drawn.min(0) == pytest.approx([80, 90]) and drawn.max(0) == pytest.approx([200, 210])
