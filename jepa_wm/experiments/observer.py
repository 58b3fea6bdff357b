"""Sees simulator states as a model does: through the camera, or as they are."""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from jepa_wm.experiments.setup import Brain

Floats = NDArray[np.float64]
Frames = NDArray[np.uint8]

_ROWS = 32  # frames encoded at once


class Observer:
    """Renders and encodes states.

    Attributes:
        model: Encodes.
        device: Where it is.
        is_camera: It sees frames; else the states themselves, as the simulator does.

    Args:
        brain: The model and what it looks at.
        env: Unwrapped environment with ``render_state``.
        proprio: Key of ``info`` that holds the pose the model is given, or None.
        device: Of the model.
    """

    def __init__(self, brain: Brain, env: Any, proprio: str | None, device: torch.device) -> None:
        self.model, self.device = brain.model, device
        self.is_camera = brain.frames == "render"
        self._env, self._proprio = env, proprio

    def frames(self, states: Floats) -> Frames:
        """Render states [..,P] as uint8 [..,h,w,3]."""
        flat = [self._env.render_state(state) for state in states.reshape(-1, states.shape[-1])]
        return np.stack(flat).reshape(*states.shape[:-1], *flat[0].shape)

    def inputs(self, states: Floats, frames: Frames) -> NDArray[Any]:
        """Return what the model takes of states [..,P] and their frames [..,h,w,3]."""
        return frames if self.is_camera else states

    def encode(self, states: Floats, frames: Frames) -> NDArray[Any]:
        """Encode states [..,P] with their frames [..,h,w,3] into latents [..,*L], one by one."""
        lead = states.shape[:-1]
        seen = self.inputs(states, frames)
        rows = seen.reshape(-1, *seen.shape[len(lead) :])
        pieces = np.array_split(rows, -(-len(rows) // _ROWS))
        bar = tqdm(pieces, desc="encoding", unit="batch", file=sys.stderr, leave=False)
        z = np.concatenate([self.encode_batch(part) for part in bar])
        return z.reshape(*lead, *z.shape[1:])

    def encode_batch(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Encode inputs [N,...] at once into latents [N,*L]."""
        with torch.inference_mode():
            inputs = self.model.preprocess(torch.from_numpy(seen)[:, None].to(self.device))
            return self.model.encode(inputs)[:, 0].cpu().numpy()

    def poses(self, states: Floats) -> Tensor | None:
        """Return the proprioception at states [B,T,P], float32 [B,T,p], where there is any."""
        if self._proprio is None:
            return None
        flat = states.reshape(-1, states.shape[-1])
        infos = [self._env.reset(seed=0, options={"state": state})[1] for state in flat]
        poses = torch.from_numpy(np.stack([info[self._proprio] for info in infos]))
        return poses.float().unflatten(0, states.shape[:2]).to(self.device)
