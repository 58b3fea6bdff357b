"""Time PushT against gym-pusht and stable-worldmodel, alternating in one process.

Run: ``python benchmarks/pusht_env.py [--rounds 40]``. Peers are timed when they can be imported::

    pip install gym-pusht==0.1.8 stable-worldmodel==0.1.1 opencv-python-headless shapely "pymunk>=7"

All environments get the same starts and, as absolute targets, the same actions, which push the
block about. A round times each environment once, in turn; the table gives medians over the rounds
and the ratio to ours. The last line is one JSON object.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pymunk

from jepa_wm.envs.physics import PushTWorlds
from jepa_wm.envs.pusht import PushT

STEPS = 50
BATCHES = (1, 64, 500)
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
        "jepa_wm": PushT(observation="state", render_mode="rgb_array", terminate=False)
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


def time_episode(
    name: str, env: Any, start: np.ndarray, actions: np.ndarray
) -> tuple[float, float]:
    """Return seconds per step and seconds per 224 px render, in one episode."""
    reset(name, env, start)
    step_seconds = render_seconds = 0.0
    for action in actions:
        if name == "gym-pusht":
            action = np.array(env.agent.position) + 100 * action
        began = time.perf_counter()
        env.step(action)
        stepped = time.perf_counter()
        env.render()
        rendered = time.perf_counter()
        step_seconds += stepped - began
        render_seconds += rendered - stepped
    return step_seconds / len(actions), render_seconds / len(actions)


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


def alternate(rounds: int) -> dict[str, dict[str, float]]:
    """Time every environment once a round; return medians in microseconds."""
    environments = peers()
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in environments}
    for index in range(rounds + 1):
        start, actions = play(index)
        for name, env in environments.items():
            timings[name].append(time_episode(name, env, start, actions))
    kinds = ("step", "render")
    return {
        name: {
            kind: 1e6 * statistics.median(row[column] for row in rows[1:])  # the first warms up
            for column, kind in enumerate(kinds)
        }
        for name, rows in timings.items()
    }


def report(run: Callable[[], dict[str, dict[str, float]]]) -> None:
    """Print the tables and the JSON line."""
    measured = run()
    ours = measured["jepa_wm"]
    print(f"{'environment':<20}{'step us':>10}{'ratio':>8}{'render us':>12}{'ratio':>8}")
    for name, row in measured.items():
        ratios = {kind: row[kind] / ours[kind] for kind in row}
        print(
            f"{name:<20}{row['step']:>10.1f}{ratios['step']:>8.2f}"
            f"{row['render']:>12.1f}{ratios['render']:>8.2f}"
        )
        row |= {f"{kind}_ratio": ratio for kind, ratio in ratios.items()}
    worlds = {str(count): time_worlds(count) for count in BATCHES}
    print(f"\n{'worlds':<20}{'env-steps/s':>12}{'set_states ms':>16}")
    for count, row in worlds.items():
        print(f"{count:<20}{row['steps_per_second']:>12.0f}{row['set_states_ms']:>16.2f}")
    packages = ("pymunk", "pygame", "gymnasium", "numpy")
    versions = {package: importlib.metadata.version(package) for package in packages}
    print(json.dumps({"environments": measured, "worlds": worlds, "versions": versions}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="timed rounds (default 40)")
    chosen = parser.parse_args()
    report(lambda: alternate(chosen.rounds))
