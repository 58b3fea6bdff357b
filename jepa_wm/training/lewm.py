"""The LeWM trainer: prediction, SIGReg and an auxiliary state loss over windows of play.

Step n draws its batch and its SIGReg directions from (seed, n); see ``loop``.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jepa_wm.errors import ConfigError
from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.loop import Loop, RunConfig, read_checkpoint
from jepa_wm.training.losses import prediction_loss, random_directions, sigreg
from jepa_wm.training.network import BatchNorm, NetworkConfig, TrainingNetwork
from jepa_wm.training.probes import ProbeResult, effective_rank, probe
from jepa_wm.training.targets import StateTargets

_COLLAPSED_STD = 0.05
_COLLAPSED_SHARE = 1 / 8  # effective rank as a share of the live columns


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Everything that decides a training run; 0 steps only renew the BatchNorm statistics.

    Attributes:
        network: Sizes.
        sigreg_weight: Weight of SIGReg.
        sigreg_directions: Random directions a step.
        sigreg_over: ``batch`` takes statistics per frame position (the paper's code);
            ``batch_time`` over batch and time together (better for small batches).
        rollout_weight: Weight of a second prediction from the predictor's own outputs; 0 is the
            paper's teacher forcing only.
        state_weight: Weight of the auxiliary regression of the simulator state; 0 is pure LeWM.
        recalibrate: Batches that renew the BatchNorm statistics before export.
    """

    network: NetworkConfig
    sigreg_weight: float
    sigreg_directions: int
    sigreg_over: str
    rollout_weight: float
    state_weight: float
    recalibrate: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigreg_over not in ("batch", "batch_time"):
            raise ConfigError(f"sigreg_over={self.sigreg_over!r}: use batch or batch_time")


class Trainer(Loop):
    """One rank of a training run.

    Args:
        config: The run.
        data: Play to learn from.
        holdout: Play to probe on, or None.
        out: Folder for ``checkpoint.pt`` and ``metrics.jsonl``; rank 0 writes.
        device: Where to compute.
    """

    config: TrainConfig
    network: TrainingNetwork
    free = Loop.free | {"recalibrate"}

    def __init__(
        self,
        config: TrainConfig,
        data: PlayDataset | Mixture,
        holdout: PlayDataset | None,
        out: Path,
        device: torch.device,
    ) -> None:
        if data.info.image_size != config.network.image_size:
            raise ConfigError(
                f"{data.folder} holds frames of {data.info.image_size} px, "
                f"network.image_size is {config.network.image_size}"
            )
        torch.manual_seed(config.seed)
        targets = StateTargets(data.info.targets, data.info.state_dim)
        if config.state_weight and not targets.size:
            raise ConfigError(
                f"{data.folder}: state_weight={config.state_weight}, but its task has no targets "
                "that say what its states are; loss.state_weight=0 trains without them"
            )
        mean, std = (np.tile(moment, data.info.block) for moment in data.action_statistics())
        network = TrainingNetwork(config.network, (mean, std), data.pixel_statistics(), targets)
        super().__init__(config, network, data, holdout, out, device)

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of every loss term."""
        c = self.config
        return {
            "prediction": 1.0,
            "sigreg": c.sigreg_weight,
            "rollout": c.rollout_weight,
            "state": c.state_weight,
        }

    @property
    def images_per_step(self) -> int:
        """Frames a step sees, over all ranks."""
        return self.config.batch * (self.config.network.n_frames + 1)

    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms of ``step`` on this rank's rows, and the live latents [B,T,D]."""
        c = self.config
        rng = np.random.default_rng([c.seed, step])
        rows = slice(self.rank, None, self.ranks)
        batch = self.data.windows(rng, c.batch, c.network.n_frames + 1, rows)
        frames, actions, states = (
            torch.from_numpy(x).to(self.device) for x in (batch.frames, batch.actions, batch.states)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.amp):
            z = self.network.encode(frames)
            predicted = self.network.predict(z[:, :-1], actions)
            if c.rollout_weight:  # frame t+1 from predictions of the frames before it
                own = torch.cat([z[:, :1], predicted[:, :-1]], 1)
                again = self.network.predict(own, actions)
        live = self.network.live(z).float()
        generator = torch.Generator().manual_seed(c.seed * 1_000_003 + step)
        directions = random_directions(live.shape[-1], c.sigreg_directions, generator)
        groups = live.flatten(0, 1)[None] if c.sigreg_over == "batch_time" else live.transpose(0, 1)
        terms = {
            "prediction": prediction_loss(self.network.live(predicted), live[:, 1:]),
            "sigreg": sigreg(groups, directions),
        }
        if c.rollout_weight:
            terms["rollout"] = prediction_loss(self.network.live(again[:, 1:]), live[:, 2:])
        if c.state_weight and self.network.state_head is not None:
            error = self.network.state_head(live) - self.network.targets(states)
            terms["state"] = error.square().mean()
        return terms, live

    def health(self, latents: Tensor) -> dict[str, float]:
        """Return smallest deviation and rank of the live latents [B,T,D], and warn of collapse."""
        flat = latents.flatten(0, 1)
        std_min, rank = float(flat.std(0).min()), effective_rank(flat.cpu())
        if std_min < _COLLAPSED_STD or rank < max(1.5, _COLLAPSED_SHARE * flat.shape[-1]):
            warnings.warn(
                f"step {self.step}: the latent is collapsing (smallest standard deviation "
                f"{std_min:.3f}, effective rank {rank:.1f} of {flat.shape[-1]}); raise "
                "sigreg_weight or the batch",
                stacklevel=2,
            )
        return {"std_min": std_min, "rank": rank}

    def probe(self, windows: int = 512) -> ProbeResult:
        """Evaluate on held-out play, or on the training play when there is none."""
        return probe(self.network, self.holdout or self.data, windows, self.config.seed)

    def recalibrate(self) -> None:
        """Renew BatchNorm statistics as plain averages over fresh batches.

        At high learning rates the running statistics lag behind the weights.
        """
        norms = [m for m in self.network.modules() if isinstance(m, BatchNorm)]
        for norm in norms:
            norm.batches.zero_()
            norm.cumulative = True
        with torch.no_grad():
            for index in range(self.config.recalibrate):
                self.losses(self.config.steps + index)
        for norm in norms:
            norm.cumulative = False

    def start_from(self, paths: Sequence[Path]) -> None:
        """Take weights and statistics, not the optimiser or the step, from other runs.

        Several runs that share a start are averaged, weight by weight ("model soup", arXiv
        2203.05482); the BatchNorm statistics are averaged too and want recalibration.

        Raises:
            ConfigError: a file is missing, unreadable, or of a network with other sizes.
        """
        found = []
        for path in paths:
            saved = read_checkpoint(path, "init", self.device)
            try:
                self.network.load_state_dict(saved["network"])
            except (RuntimeError, KeyError) as error:
                raise ConfigError(f"init={path} is of another network: {error}") from error
            found.append({name: value.clone() for name, value in saved["network"].items()})
        mean = {
            name: torch.stack([state[name] for state in found]).mean(0)
            if value.is_floating_point()
            else value
            for name, value in found[0].items()
        }
        self.network.load_state_dict(mean)
