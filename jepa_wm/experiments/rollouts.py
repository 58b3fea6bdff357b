"""Rollouts of an experiment: what a model encodes of true paths, and what it predicts of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jepa_wm.control.discrete import Codec
from jepa_wm.control.interfaces import Context
from jepa_wm.experiments.observer import Floats, Frames, Observer
from jepa_wm.experiments.paths import Paths

Latents = NDArray[Any]

_BANK_EACH = 8  # frames of an episode that go into the bank
DISTANCES = {
    "l2": ("root mean square difference", lambda gap: np.sqrt(np.square(gap).mean(-1))),
    "l1": ("mean absolute difference", lambda gap: np.abs(gap).mean(-1)),
}


def distance(a: Latents, b: Latents, kind: str) -> Floats:
    """Return the distance [..] of flat latents [..,K], broadcast: ``l2`` or ``l1`` a number."""
    gap = np.asarray(a, np.float64) - b
    return DISTANCES[kind][1](gap)


@dataclass(frozen=True, eq=False)
class Bank:
    """M frames of other episodes, encoded.

    Attributes:
        states: float64 [M,P].
        episodes: Which episode each is of, int64 [M].
        frames: uint8 [M,h,w,3].
        z: Latents, flat [M,K].
    """

    states: Floats
    episodes: NDArray[np.int64]
    frames: Frames
    z: Latents


@dataclass(frozen=True, eq=False)
class Imagined:
    """What a model makes of B paths from the last context frame on, at n = H + 1 moments.

    Attributes:
        states: True states float64 [B,n,P].
        frames: uint8 [B,n,h,w,3].
        encoded: Latents of the true frames [B,n,*L].
        predicted: Latents predicted [B,n,*L]; the first is encoded.
        steps: Env steps since the last context frame, int64 [n].
    """

    states: Floats
    frames: Frames
    encoded: Latents
    predicted: Latents
    steps: NDArray[np.int64]

    def flat(self) -> tuple[Latents, Latents]:
        """Return encoded and predicted latents with their numbers in one row, [B,n,K] each."""
        lead = self.encoded.shape[:2]
        return self.encoded.reshape(*lead, -1), self.predicted.reshape(*lead, -1)


def bank_episodes(size: int) -> int:
    """Return from how many episodes a bank of ``size`` frames is taken."""
    return max(4, -(-size // _BANK_EACH))


def make_bank(states: Floats, size: int, observer: Observer) -> Bank:
    """Take ``size`` frames evenly over episodes [E,K+1,P], or fewer where there are no more."""
    each = min(-(-size // len(states)), states.shape[1])
    times = np.unique(np.linspace(0, states.shape[1] - 1, each).round().astype(int))
    episodes = np.repeat(np.arange(len(states)), len(times))[:size]
    chosen = states[:, times].reshape(-1, states.shape[-1])[:size]
    frames = observer.frames(chosen)
    z = observer.encode(chosen, frames)
    return Bank(chosen, episodes, frames, z.reshape(len(z), -1))


def imagine(codec: Codec, observer: Observer, paths: Paths) -> Imagined:
    """Encode true paths and predict them from their context, one path at a time."""
    T, device = paths.history, observer.device
    frames = observer.frames(paths.states)
    encoded = observer.encode(paths.states, frames)
    poses = observer.poses(paths.states[:, :T])
    B = len(encoded)
    ahead = codec.encode(paths.ahead).to(device)
    past = ahead[:, :0] if T == 1 else codec.encode(paths.past).to(device)
    found = []
    for row in range(B):
        one = slice(row, row + 1)
        z = torch.from_numpy(encoded[one, :T]).to(device)
        context = Context(z, past[one], None if poses is None else poses[one])
        with torch.inference_mode():
            found.append(observer.model.rollout(context, ahead[one, None])[0, 0].cpu().numpy())
    predicted = np.concatenate([encoded[:, T - 1 : T], np.stack(found)], 1)
    now = np.s_[:, T - 1 :]
    steps = codec.block * np.arange(predicted.shape[1])
    return Imagined(paths.states[now], frames[now], encoded[now], predicted, steps)


def fit_plane(z: Latents) -> tuple[Floats, Floats, tuple[float, float]]:
    """Fit the plane of the two widest directions of flat latents [M,K].

    Returns:
        Their mean [K], the two directions [2,K], and the shares of the variance along them.
    """
    rows = np.asarray(z, np.float64)
    centre = rows.mean(0)
    rows = rows - centre
    size, vectors = np.linalg.eigh(rows @ rows.T)  # frames are fewer than numbers, or few
    widest, total = size[:-3:-1], max(float(size.sum()), 1e-12)
    axes = (rows.T @ vectors[:, :-3:-1]).T / np.sqrt(np.maximum(widest, 1e-12))[:, None]
    return centre, axes, (float(widest[0]) / total, float(widest[1]) / total)
