"""What really comes of a planner's plans: the data that stops a planner from dreaming.

A planner searches for actions the model is optimistic about, and finds the model's errors. Here
held-out tasks are planned with a model, candidates of every solve are executed in the simulator
from the state they were planned for, and the outcomes become training episodes.
"""

from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray

from jepa_wm.control.mpc import MPC
from jepa_wm.control.protocol import cut_segments
from jepa_wm.envs.play import Floats, PlayEpisodes, PlayWorlds, play
from jepa_wm.envs.rendering import PushTRenderer
from jepa_wm.experiments.setup import load_agent
from jepa_wm.runtime import resolve_dtype, stream_seed

DECISIONS = 10  # solves a task
CANDIDATES = 8  # candidates a solve that are executed: the plan itself, and samples around it
OFFSET = 25  # environment steps between start and goal
_CPU = torch.device("cpu")


def dream(
    model: str | Path, seed: int, count: int, first: int, renderer: PushTRenderer
) -> PlayEpisodes:
    """Plan, execute candidates, return ``count`` episodes of one horizon each.

    Args:
        model: Bundle to plan with; path or bundled name.
        seed: Seed of the play the tasks are cut from.
        count: Episodes wanted.
        first: Index of the first episode in the whole collection.
        renderer: Draws what the model sees.
    """
    tasks = -(-count // (DECISIONS * CANDIDATES))
    recorded = play(seed, tasks, 3 * OFFSET, first)
    segments = cut_segments(recorded.states, recorded.actions, OFFSET, stream_seed(seed, first))
    box = Box(-1.0, 1.0, (2,), np.float32)
    agent = load_agent(model, box, _CPU, dtype=resolve_dtype("auto", _CPU))
    goals = np.stack([renderer.render(state) for state in segments.goals])
    agent.reset(goals, [stream_seed(seed, first, row) for row in range(tasks)])
    worlds = PlayWorlds(tasks)
    worlds.set_states(segments.starts)
    outcomes = [_decide(agent, worlds, renderer, stream_seed(seed, first, d, "candidates"))
                for d in range(DECISIONS)]  # fmt: skip
    states, actions = (np.concatenate(part)[:count] for part in zip(*outcomes, strict=True))
    return PlayEpisodes(states, actions)


def _decide(
    agent: MPC, worlds: PlayWorlds, renderer: PushTRenderer, seed: int
) -> tuple[Floats, NDArray[np.float32]]:
    """Let the agent plan and act for one block; return what its candidates would have done.

    Returns:
        States [N,K+1,7] and actions [N,K,2] of the N = tasks x ``CANDIDATES`` outcomes.
    """
    start = worlds.states()
    frames = np.stack([renderer.render(state) for state in start])
    worlds.act(agent.act(frames))
    plan = agent.last_plan
    assert plan is not None  # the agent has just planned
    noise = torch.randn(
        CANDIDATES, *plan.actions.shape, generator=torch.Generator().manual_seed(seed)
    )
    noise[0] = 0  # the plan itself
    actions = agent.codec.decode((plan.actions + plan.std * noise).flatten(0, 1)).numpy()
    for _ in range(agent.codec.block - 1):
        worlds.act(agent.act(None))
    return _execute(np.tile(start, (CANDIDATES, 1)), actions), actions


def _execute(starts: Floats, actions: NDArray[np.float32]) -> Floats:
    """Run actions [N,K,2] from states [N,7]; return all states [N,K+1,7]."""
    worlds = PlayWorlds(len(starts))
    worlds.set_states(starts)
    states = [worlds.states()]
    for step in range(actions.shape[1]):
        worlds.act(actions[:, step])
        states.append(worlds.states())
    return np.stack(states, 1)
