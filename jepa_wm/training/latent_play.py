"""Play as latents: every frame encoded once, so that a predictor's steps cost no encoder."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from jepa_wm.errors import ConfigError
from jepa_wm.models.pose import POSE_DIM
from jepa_wm.training.dataset import PlayDataset
from jepa_wm.training.encoder_probe import Encode, encode_all


@dataclass(frozen=True)
class Sequences:
    """A batch of T+1 frames and the T actions between them.

    Attributes:
        z: Layer-normed latents float32 [B,T+1,N,D].
        actions: Differences of poses float32 [B,T,7].
        poses: float32 [B,T+1,7].
    """

    z: Tensor
    actions: Tensor
    poses: Tensor


@dataclass(frozen=True)
class LatentPlay:
    """All episodes of one or more datasets, E of F frames, in memory.

    Attributes:
        z: Layer-normed latents float16 [E,F,N,D].
        actions: float32 [E,F-1,7].
        states: float32 [E,F,P]; the leading columns are the arm's pose.
    """

    z: Tensor
    actions: Tensor
    states: Tensor

    @classmethod
    def encode(
        cls, parts: Sequence[PlayDataset], encode: Encode, device: torch.device
    ) -> "LatentPlay":
        """Encode datasets, with a progress bar.

        Raises:
            ConfigError: a dataset is not an arm's, or episodes have several lengths.
        """
        for part in parts:
            check_arm(part)
            if part.info.frames != parts[0].info.frames:
                raise ConfigError(
                    f"{part.folder} has {part.info.frames} frames an episode, {parts[0].folder} "
                    f"has {parts[0].info.frames}: datasets of one run must agree"
                )
        episodes = [frames for part in parts for frames in part.frames]
        z = [
            encode_all(encode, torch.from_numpy(np.array(frames)), device).half()
            for frames in tqdm(episodes, desc="encoding", unit="episode", disable=None)
        ]
        actions, states = (
            torch.from_numpy(np.concatenate([getattr(part, name) for part in parts]))
            for name in ("actions", "states")
        )
        return cls(torch.stack(z), actions, states)

    def sequences(
        self, rng: np.random.Generator, batch: int, steps: int, rows: slice = slice(None)
    ) -> Sequences:
        """Draw ``batch`` sequences of ``steps`` actions, uniformly over episodes and starts.

        Args:
            rng: Source of the draw.
            batch: Sequences in the whole batch.
            steps: Actions of a sequence.
            rows: The part of the batch to read; a rank takes its own and draws like the others.
        """
        E, F = self.z.shape[:2]
        if steps >= F:
            raise ConfigError(f"episodes of {F} frames have no sequence of {steps} actions")
        episode = torch.from_numpy(rng.integers(E, size=batch)[rows, None])
        start = torch.from_numpy(rng.integers(F - steps, size=batch)[rows, None])
        times = start + torch.arange(steps + 1)
        return Sequences(
            self.z[episode, times].float(),
            self.actions[episode, times[:, :-1]],
            self.poses[episode, times],
        )

    @property
    def poses(self) -> Tensor:
        """Poses of the arm, float32 [E,F,7]."""
        return self.states[..., :POSE_DIM]


def check_arm(data: PlayDataset) -> None:
    """Refuse play whose actions are no differences of poses, one a frame.

    Raises:
        ConfigError: the size of the actions, of the states, or the block.
    """
    info = data.info
    if (info.action_dim, info.block) != (POSE_DIM, 1) or info.state_dim < POSE_DIM:
        raise ConfigError(
            f"{data.folder} ({info.env}) holds actions of {info.action_dim} numbers in blocks of "
            f"{info.block} and states of {info.state_dim}: an action-conditioned predictor wants "
            f"an arm's, {POSE_DIM} numbers in blocks of 1 (collect with env=reach)"
        )
