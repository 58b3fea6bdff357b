"""The encoder trainer: a small V-JEPA 2 learns by predicting latents of hidden patches.

The targets come from a copy of the encoder that follows it slowly and sees every patch; they are
layer-normed, and the loss is L1. Every frame is a tubelet of itself, as the action-conditioned
predictor will be shown it; clips are of consecutive frames, some of one frame alone.

Paper: V-JEPA 2, arXiv 2506.09985, section 2; the masks are V-JEPA's (``masking``). On pictures of
    one scene, where little but the arm moves, small runs of that alone lose the arm: what is easy
    to predict is where a patch lies. ``state_weight`` adds a linear reading of the simulator's
    state from every seen token; 0 is the paper's loss alone.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jepa_wm.errors import ConfigError
from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.encoder_probe import EncoderProbe, probe_encoder
from jepa_wm.training.loop import Loop, RunConfig
from jepa_wm.training.masked_network import EncoderSizes, MaskedNetwork, normed
from jepa_wm.training.masking import block_mask
from jepa_wm.training.probes import effective_rank

_COLLAPSED_STD, _COLLAPSED_RANK = 0.05, 1.5
_SAMPLE = 2000  # states from which their mean and spread are taken
_SHARES = (0.05, 0.75)  # of hidden patches


@dataclass(frozen=True, kw_only=True)
class EncoderRun(RunConfig):
    """Everything that decides an encoder's training run.

    Attributes:
        network: Sizes.
        frames: Frames of a clip.
        still_share: Share of steps whose clips are single frames, as many as there are in the
            clips of another step.
        mask_share: Least and greatest share of patches to hide, drawn evenly every step.
        ema: Momentum of the target encoder at the first and at the last step.
        state_weight: Weight of the auxiliary regression of the state; 0 leaves it out.
        state_columns: Columns of the state it reads.
    """

    network: EncoderSizes
    frames: int
    still_share: float
    mask_share: tuple[float, float]
    ema: tuple[float, float]
    state_weight: float
    state_columns: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.mask_share
        if not _SHARES[0] <= low <= high <= _SHARES[1]:
            raise ConfigError(
                f"mask_share={list(self.mask_share)} must be two rising numbers in {list(_SHARES)}"
            )
        if self.frames < 1 or not self.state_columns:
            raise ConfigError(f"frames={self.frames} and state_columns must be at least one")


class EncoderTrainer(Loop):
    """One rank of an encoder's training run; arguments as ``Loop``'s, but for the network."""

    config: EncoderRun
    network: MaskedNetwork

    def __init__(
        self,
        config: EncoderRun,
        data: PlayDataset | Mixture,
        holdout: PlayDataset | None,
        out: Path,
        device: torch.device,
    ) -> None:
        check_data(data, config.network.image_size, config.state_columns)
        torch.manual_seed(config.seed)
        sample = data.windows(np.random.default_rng(config.seed), _SAMPLE, 1).states[:, 0]
        states = torch.from_numpy(sample)[:, list(config.state_columns)]
        spread = states.mean(0), states.std(0).clamp(min=1e-6)
        network = MaskedNetwork(config.network, config.frames, data.pixel_statistics(), spread)
        super().__init__(config, network, data, holdout, out, device)

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of every loss term."""
        return {"prediction": 1.0, "state": self.config.state_weight}

    @property
    def images_per_step(self) -> int:
        """Frames a step sees, over all ranks."""
        return self.config.batch * self.config.frames

    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms of ``step``, and the targets [B,N,D] of all patches."""
        c = self.config
        rng = np.random.default_rng([c.seed, step])
        T = 1 if rng.random() < c.still_share else c.frames
        side = c.network.image_size // c.network.patch_size
        mask = block_mask(rng, (T, side, side), rng.uniform(*c.mask_share))
        seen, hidden = (ids.to(self.device) for ids in mask)
        rows = slice(self.rank, None, self.ranks)
        batch = self.data.windows(rng, c.batch * c.frames // T, T, rows)
        frames, states = (torch.from_numpy(x).to(self.device) for x in (batch.frames, batch.states))
        clips = self.network.clips(frames)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.amp):
            with torch.no_grad():
                target = normed(self.network.target(clips))
            z = self.network.enc(clips, seen)
            predicted = self.network.pred(z, seen, hidden, mask_index=0).target
        terms = {"prediction": (predicted.float() - target[:, hidden]).abs().mean()}
        if c.state_weight:
            read = self.network.state_head(normed(z))
            terms["state"] = (read - self.wanted(states, seen // side**2)).abs().mean()
        return terms, target

    def wanted(self, states: Tensor, frame: Tensor) -> Tensor:
        """Return what tokens should tell: standardised columns of their own frame's state.

        Args:
            states: float [B,T,P].
            frame: Frame of every token, int64 [K].

        Returns:
            float32 [B,K,columns].
        """
        columns = states[..., list(self.config.state_columns)]
        return ((columns - self.network.state_mean) / self.network.state_std)[:, frame]

    def after_step(self) -> None:
        """Let the target encoder follow."""
        first, last = self.config.ema
        done = self.step / max(1, self.config.steps)
        self.network.follow(first + (last - first) * done)

    def health(self, latents: Tensor) -> dict[str, float]:
        """Return deviation and rank of what differs between pictures, and warn of a collapse."""
        centred = (latents - latents.mean(0)).cpu()
        std, rank = float(centred.std(0).mean()), effective_rank(centred.flatten(0, 1))
        if std < _COLLAPSED_STD or rank < _COLLAPSED_RANK:
            warnings.warn(
                f"step {self.step}: the encoder is collapsing (mean standard deviation between "
                f"pictures {std:.3f}, effective rank {rank:.1f}); raise state_weight or the batch",
                stacklevel=2,
            )
        return {"std": std, "rank": rank}

    def probe(self) -> EncoderProbe:
        """Evaluate on held-out play, or on the training play when there is none."""
        return probe_encoder(
            self.network.encode, self.holdout or self.data, self.config.state_columns, self.device
        )


def check_data(
    data: PlayDataset | Mixture, image_size: int, state_columns: tuple[int, ...] = ()
) -> None:
    """Refuse play that does not fit a network.

    Raises:
        ConfigError: frames have another size, or there are fewer columns in a state.
    """
    info = data.info
    if info.image_size != image_size:
        raise ConfigError(
            f"{data.folder} holds frames of {info.image_size} px, "
            f"network.image_size is {image_size}"
        )
    if max(state_columns, default=0) >= info.state_dim or min(state_columns, default=0) < 0:
        raise ConfigError(
            f"state_columns={list(state_columns)}: {data.folder} holds states of "
            f"{info.state_dim} columns, 0 to {info.state_dim - 1}"
        )
