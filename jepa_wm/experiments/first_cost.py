"""What an agent sees first, and the cost function of its first solve: for measuring it."""

import gymnasium
import numpy as np
import torch

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import MPC
from jepa_wm.control.protocol import Segments
from jepa_wm.control.situation import Situation

Seen = tuple[np.ndarray, np.ndarray | None]
"""A frame, e.g. uint8 [H,W,3], and proprioception [P] in env units, or None."""


def first_sight(env: gymnasium.Env, segments: Segments, frames: str, proprio: str | None) -> Seen:
    """Begin the first episode and return what an agent sees.

    Args:
        env: Is reset.
        segments: Of the run.
        frames: ``render``, or the info key of the state.
        proprio: The info key of proprioception, or None.
    """
    options = {"state": segments.starts[0], "goal_state": segments.goals[0]}
    _, info = env.reset(seed=0, options=options)
    frame = env.render() if frames == "render" else info[frames]
    return np.asarray(frame), None if proprio is None else np.asarray(info[proprio])


def first_cost(agent: MPC, seen: Seen) -> RolloutCost:
    """Encode one frame and return what the planner would be given: one problem, no past.

    Args:
        agent: The control loop, whose settings count; it is not touched.
        seen: What it sees; also the goal.
    """
    (frame, proprio), model, device = seen, agent.world_model, agent.device
    frames = torch.from_numpy(np.ascontiguousarray(frame))[None, None].to(device)
    pose = None
    if proprio is not None:
        pose = torch.from_numpy(np.asarray(proprio, np.float32))[None, None].to(device)
    z = model.encode(model.preprocess(frames))
    context = Context(z, z.new_zeros(1, 0, agent.codec.action_dim), pose)
    situation = Situation(
        block=agent.codec.block, goal_proprio=None if pose is None else pose[:, 0]
    )
    return RolloutCost(model, agent.objective, z[:, 0], context, agent.chunk, 1, situation)
