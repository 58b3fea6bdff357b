"""Time PushT against gym-pusht and stable-worldmodel, alternating in one process.

Run: ``python benchmarks/pusht_env.py [--rounds 40] [--quick]``. Peers are timed where there are::

    pip install gym-pusht==0.1.8 stable-worldmodel==0.1.1 opencv-python-headless shapely "pymunk>=7"

All environments get the same starts and, as absolute targets, the same actions, which push the
block about. A round times each environment once, in turn; ratios are taken within a round. ``both``
is a step and its render. The last line is one JSON object.
"""

import argparse
import contextlib
import io
import json
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pymunk
from timing import Timings, machine, positive, speedup, summary

from jepa_wm.envs.physics import PushTWorlds
from jepa_wm.envs.pusht import PushT
from jepa_wm.runtime import command

STEPS = 50
BATCHES = (1, 64, 500)
KINDS = ("step", "render", "both")
OURS = "jepa_wm"
GOAL = np.array([400, 100, 256, 256, np.pi / 4, 0, 0])


class OldCollisionHandler:
    """What pymunk < 7 gave for ``space.add_collision_handler``, which gym-pusht still calls."""

    def __init__(self, space: pymunk.Space, first: int, second: int) -> None:
        self.__dict__["register"] = lambda name, fn: space.on_collision(first, second, **{name: fn})

    def __setattr__(self, name: str, value: Any) -> None:
        self.register(name, value)


def peers() -> dict[str, Any]:
    """Return the environments that can be imported, by name; ours first."""
    found: dict[str, Any] = {
        OURS: PushT(observation="state", render_mode="rgb_array", terminate=False)
    }
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import stable_worldmodel  # noqa: F401

            found["stable-worldmodel"] = gym.make("swm/PushT-v1").unwrapped
        except ImportError:
            print("stable-worldmodel is not installed: not timed")
        try:
            import gym_pusht  # noqa: F401

            if not hasattr(pymunk.Space, "add_collision_handler"):
                pymunk.Space.add_collision_handler = lambda *a: OldCollisionHandler(*a)
            found["gym-pusht"] = gym.make(
                "gym_pusht/PushT-v0",
                obs_type="state",
                visualization_width=224,
                visualization_height=224,
            ).unwrapped
        except ImportError:
            print("gym-pusht is not installed: not timed")
    return found


def reset(name: str, env: Any, start: np.ndarray) -> None:
    """Start an environment in a state float [7]."""
    if name == "gym-pusht":
        env.reset(options={"reset_to_state": start[:5]})
    else:
        env.reset(options={"state": start, "goal_state": GOAL})


def play(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a start [7] and relative actions [STEPS,2] that keep pushing the block."""
    env, rng = PushT(observation="state", terminate=False), np.random.default_rng(seed)
    start, _ = env.reset(seed=seed)
    state, actions = start, []
    for _ in range(STEPS):
        target = np.clip(state[2:4] + rng.normal(0, 40, 2), 60, 452)  # stay off the walls
        actions.append(np.clip((target - state[:2]) / 100, -1, 1))
        state = env.step(actions[-1])[0]
    return start, np.array(actions)


def clocks() -> tuple[float, float]:
    """Read the clock and this process's processor seconds."""
    return time.perf_counter(), time.process_time()


def time_episode(name: str, env: Any, start: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return seconds by the clock and of the processor for each of ``KINDS``, float64 [2,3]."""
    reset(name, env, start)
    spent = np.zeros((2, 2))  # of step, render
    for action in actions:
        if name == "gym-pusht":
            action = np.array(env.agent.position) + 100 * action
        began = clocks()
        env.step(action)
        stepped = clocks()
        env.render()
        spent += np.diff([began, stepped, clocks()], axis=0)
    each = spent.T / len(actions)  # [2,2], clocks first
    return np.concatenate([each, each.sum(1, keepdims=True)], 1)


def time_worlds(count: int) -> dict[str, float]:
    """Return env-steps a second and milliseconds per ``set_states`` of worlds side by side."""
    rng, worlds = np.random.default_rng(0), PushTWorlds(count)
    places = np.concatenate(
        [rng.uniform(50, 450, (count, 2)), rng.uniform(100, 400, (count, 2))], 1
    )
    states = np.concatenate([places, rng.uniform(0, 6.28, (count, 1)), np.zeros((count, 2))], 1)
    rounds = max(5, 2000 // count // 25)
    step_seconds, set_seconds = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        worlds.set_states(states)
        set_seconds.append(time.perf_counter() - began)
        elapsed = 0.0
        for _ in range(25):
            targets = worlds.states()[:, 2:4] + rng.normal(0, 40, (count, 2))
            began = time.perf_counter()
            worlds.step(targets)
            elapsed += time.perf_counter() - began
        step_seconds.append(elapsed / 25)
    return {
        "steps_per_second": count / statistics.median(step_seconds),
        "set_states_ms": 1e3 * statistics.median(set_seconds),
    }


def alternate(environments: dict[str, Any], rounds: int) -> dict[str, Timings]:
    """Time every environment once a round, in turn; the first round warms up."""
    spent = np.zeros((rounds + 1, len(environments), 2, len(KINDS)))
    for index in range(rounds + 1):
        start, actions = play(index)
        for column, (name, env) in enumerate(environments.items()):
            spent[index, column] = time_episode(name, env, start, actions)
    return {
        kind: Timings(spent[1:, :, 0, k], spent[1:, :, 1, k], []) for k, kind in enumerate(KINDS)
    }


def report(names: Sequence[str], timings: dict[str, Timings]) -> dict[str, Any]:
    """Print and return medians and the ratios to ours: environment -> kind -> figures."""
    print(f"{'environment':<20}" + "".join(f"{kind + ' us':>12}{'ratio':>7}" for kind in KINDS))
    found: dict[str, Any] = {"environments": {}, "ratios": {}}
    for column, name in enumerate(names):
        rows = {kind: summary(timings[kind], column) for kind in KINDS}
        ratios = {kind: speedup(timings[kind], 0, column) for kind in KINDS}
        found["environments"][name] = rows
        if name != OURS:
            found["ratios"][name] = ratios
        cells = (f"{1e6 * rows[k]['median']:>12.1f}{ratios[k]['median']:>7.2f}" for k in KINDS)
        print(f"{name:<20}" + "".join(cells))
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=40, help="timed rounds (default 40)")
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    args = parser.parse_args(argv)
    environments = peers()
    measured = report(list(environments), alternate(environments, 1 if args.quick else args.rounds))
    worlds = {str(count): time_worlds(count) for count in (BATCHES[:1] if args.quick else BATCHES)}
    print(f"\n{'worlds':<20}{'env-steps/s':>12}{'set_states ms':>16}")
    for count, row in worlds.items():
        print(f"{count:<20}{row['steps_per_second']:>12.0f}{row['set_states_ms']:>16.2f}")
    about = machine(1, "pygame", "stable-worldmodel", "gym-pusht")
    document = {"machine": about, "rounds": args.rounds, **measured, "worlds": worlds}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
