"""The trainer of an action-conditioned predictor on a frozen encoder.

Two L1 losses on layer-normed latents: teacher forcing, where every next frame is predicted from
real frames, and a rollout, where the predictor goes on from its own predictions after one frame.

Paper: V-JEPA 2, arXiv 2506.09985, section 3 (equations 2 to 4; its rollout has two steps). Kept
    from the paper: the frozen encoder, poses and their differences as conditioning, both losses in
    equal weight. Ours: actions and poses are standardised by the play's statistics while training;
    the bundle gets weights that take them raw.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from jepa_wm.errors import ConfigError
from jepa_wm.models.ac import ACConfig, ACPredictor
from jepa_wm.models.pose import POSE_DIM
from jepa_wm.training.ac_probe import ACProbe, probe_predictor
from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.latent_play import LatentPlay
from jepa_wm.training.loop import Loop, RunConfig
from jepa_wm.training.masked import check_data
from jepa_wm.training.masked_network import MaskedNetwork, initialise, normed
from jepa_wm.training.probes import effective_rank


@dataclass(frozen=True, kw_only=True)
class PredictorSizes:
    """Sizes of the predictor; its feed-forward layer is 4 times as wide.

    Attributes:
        embed_dim: Token width.
        n_layer: Blocks.
        n_head: Heads.
        n_frames: Frames of a training sequence, and the most a rollout can look at.
    """

    embed_dim: int
    n_layer: int
    n_head: int
    n_frames: int


@dataclass(frozen=True, kw_only=True)
class ACRun(RunConfig):
    """Everything that decides a predictor's training run.

    Attributes:
        network: Sizes.
        rollout_steps: Steps of the rollout loss, at most ``network.n_frames``; 1 leaves it out.
        rollout_weight: Its weight beside teacher forcing.
    """

    network: PredictorSizes
    rollout_steps: int
    rollout_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.rollout_steps <= self.network.n_frames:
            raise ConfigError(
                f"rollout_steps={self.rollout_steps} must be 1 to "
                f"network.n_frames={self.network.n_frames}"
            )


class ACNetwork(nn.Module):
    """The predictor, and the scales of what conditions it.

    Args:
        config: Configuration of the predictor.
        actions: Mean and standard deviation of actions, [7] each.
        poses: Mean and standard deviation of poses, [7] each.
    """

    scales: Tensor

    def __init__(
        self, config: ACConfig, actions: tuple[Tensor, Tensor], poses: tuple[Tensor, Tensor]
    ) -> None:
        super().__init__()
        self.pred = ACPredictor(config)
        initialise(self)
        for layer in (self.pred.action_embed, self.pred.state_embed):
            nn.init.normal_(layer.weight, std=0.3)  # conditioning must be heard from the start
        self.register_buffer("scales", torch.stack([*actions, *poses]))  # [4,7]

    def forward(self, z: Tensor, actions: Tensor, poses: Tensor) -> Tensor:
        """Predict every next frame, layer-normed: z [B,T,N,D] -> float32 [B,T,N,D]."""
        mean_a, std_a, mean_p, std_p = self.scales
        return normed(self.pred(z, (actions - mean_a) / std_a, (poses - mean_p) / std_p))

    def rollout(self, z: Tensor, actions: Tensor, poses: Tensor, steps: int) -> Tensor:
        """Go on from one frame by own predictions: the frames after 2 to ``steps`` steps.

        Args:
            z: The first frame and the prediction of the second, float [B,2,N,D].
            actions: float [B,T,7].
            poses: True poses, float [B,T,7].
            steps: Steps in all.

        Returns:
            float32 [B,steps-1,N,D].
        """
        for step in range(2, steps + 1):
            nxt = self(z, actions[:, :step], poses[:, :step])[:, -1:]
            z = torch.cat([z, nxt], 1)
        return z[:, 2:]

    def folded(self) -> ACPredictor:
        """Return a copy of the predictor that takes raw actions and poses."""
        pred = copy.deepcopy(self.pred)
        layers = (pred.action_embed, pred.state_embed)
        for layer, (mean, std) in zip(layers, self.scales.double().split(2), strict=True):
            weight = layer.weight.data.double() / std
            layer.bias.data.copy_((layer.bias.data.double() - weight @ mean).float())
            layer.weight.data.copy_(weight.float())
        return pred


class ACTrainer(Loop):
    """One rank of a predictor's training run.

    Args:
        config: The run.
        encoder: What encodes the frames; it does not learn.
        data: Play to learn from: one dataset, or several of one length.
        holdout: Play to probe on, or None.
        out: Folder for ``checkpoint.pt`` and ``metrics.jsonl``; rank 0 writes.
        device: Where to compute.
    """

    config: ACRun
    network: ACNetwork

    def __init__(
        self,
        config: ACRun,
        encoder: MaskedNetwork,
        data: PlayDataset | Mixture,
        holdout: PlayDataset | None,
        out: Path,
        device: torch.device,
    ) -> None:
        check_data(data, encoder.target.config.img_size)
        self.encoder = encoder.to(device).eval().requires_grad_(False)
        parts = data.parts if isinstance(data, Mixture) else [data]
        self.play = LatentPlay.encode(parts, self.encoder.encode, device)
        self.seen = self.play  # what probes look at
        if holdout is not None:
            self.seen = LatentPlay.encode([holdout], self.encoder.encode, device)
        torch.manual_seed(config.seed)
        scales = [
            (x.mean(0), x.std(0).clamp(min=1e-6))
            for x in (self.play.actions.flatten(0, 1), self.play.poses.flatten(0, 1))
        ]
        network = ACNetwork(self._predictor(config.network), *scales)
        super().__init__(config, network, data, holdout, out, device)

    def _predictor(self, sizes: PredictorSizes) -> ACConfig:
        enc = self.encoder.target.config
        return ACConfig(
            embed_dim=sizes.embed_dim,
            n_layer=sizes.n_layer,
            n_head=sizes.n_head,
            ffn_dim=4 * sizes.embed_dim,
            out_dim=enc.embed_dim,
            action_dim=POSE_DIM,
            state_dim=POSE_DIM,
            n_frames=sizes.n_frames,
            grid_size=enc.img_size // enc.patch_size,
            normalize_reps=True,
        )

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of every loss term."""
        return {"prediction": 1.0, "rollout": self.config.rollout_weight}

    @property
    def images_per_step(self) -> int:
        """Frames a step sees, over all ranks."""
        return self.config.batch * (self.config.network.n_frames + 1)

    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms of ``step``, and the predictions [B,T,N,D]."""
        c = self.config
        rng = np.random.default_rng([c.seed, step])
        rows = slice(self.rank, None, self.ranks)
        batch = self.play.sequences(rng, c.batch, c.network.n_frames, rows)
        z, actions, poses = (x.to(self.device) for x in (batch.z, batch.actions, batch.poses))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.amp):
            predicted = self.network(z[:, :-1], actions, poses[:, :-1])
            terms = {"prediction": (predicted - z[:, 1:]).abs().mean()}
            if c.rollout_steps > 1:
                start = torch.cat([z[:, :1], predicted[:, :1]], 1)
                own = self.network.rollout(start, actions, poses, c.rollout_steps)
                terms["rollout"] = (own - z[:, 2 : c.rollout_steps + 1]).abs().mean()
        return terms, predicted

    def health(self, latents: Tensor) -> dict[str, float]:
        """Return the effective rank of what differs between predictions."""
        centred = (latents - latents.mean((0, 1))).flatten(0, 2).float().cpu()
        return {"rank": effective_rank(centred)}

    def probe(self) -> ACProbe:
        """Evaluate on held-out play, or on the training play when there is none."""
        return probe_predictor(self.network, self.seen, self.device)
