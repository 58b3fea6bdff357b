"""The LeWM that is trained: the runtime's modules with BatchNorm projectors and a state head.

A small latent lives inside a wider predictor: the projectors have ``latent_dim`` live outputs and
zeros up to the model's width, so a bundle keeps the schema's graph while distances, predictions
and SIGReg see the live columns only.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jepa_wm.models.layers import Activation
from jepa_wm.models.lewm import LeWM, PredictorConfig
from jepa_wm.models.vit import EncoderConfig
from jepa_wm.training.losses import mean_over_ranks
from jepa_wm.training.targets import StateTargets

Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Mean and standard deviation."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Sizes of the trained model; what is absent follows from these.

    Attributes:
        image_size: Input side in pixels.
        patch_size: Patch side in pixels.
        embed_dim: Width of encoder and predictor.
        latent_dim: Live columns of the latent, at most ``embed_dim``.
        enc_layers: Encoder blocks.
        enc_heads: Encoder heads.
        pred_layers: Predictor blocks.
        pred_heads: Predictor heads.
        pred_head_dim: Width of a predictor head.
        pred_ffn_dim: Hidden width of the predictor's feed-forward layer.
        proj_hidden: Hidden width of both projectors.
        n_frames: Context frames of the predictor.
    """

    image_size: int
    patch_size: int
    embed_dim: int
    latent_dim: int
    enc_layers: int
    enc_heads: int
    pred_layers: int
    pred_heads: int
    pred_head_dim: int
    pred_ffn_dim: int
    proj_hidden: int
    n_frames: int

    def encoder(self) -> EncoderConfig:
        """Return the encoder's sizes (feed-forward width 4D, as every published ViT)."""
        return EncoderConfig(
            embed_dim=self.embed_dim,
            n_layer=self.enc_layers,
            n_head=self.enc_heads,
            ffn_dim=4 * self.embed_dim,
            patch_size=self.patch_size,
            img_size=self.image_size,
        )

    def predictor(self, action_dim: int) -> PredictorConfig:
        """Return the predictor's sizes for solver actions of size ``action_dim``."""
        return PredictorConfig(
            embed_dim=self.embed_dim,
            n_layer=self.pred_layers,
            n_head=self.pred_heads,
            head_dim=self.pred_head_dim,
            ffn_dim=self.pred_ffn_dim,
            n_frames=self.n_frames,
            action_dim=action_dim,
            action_hidden=4 * self.embed_dim,
            proj_hidden=self.proj_hidden,
        )


class BatchNorm(nn.Module):
    """Batch normalisation over all leading axes, with statistics shared by all ranks.

    Same maths and state names as ``nn.BatchNorm1d`` (eps 1e-5); PyTorch's synchronised variant
    does not run on a CPU.

    Attributes:
        cumulative: Running statistics become the plain average of the batches seen.
        frozen: Running statistics stay as they are.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.eps, self.momentum = 1e-5, 0.1
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.cumulative = self.frozen = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise features of x [..,D]."""
        if not self.training:
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return x * scale + (self.bias - self.running_mean * scale)
        axes = tuple(range(x.ndim - 1))
        moments = torch.stack([x.float().mean(axes), x.float().square().mean(axes)])
        # a frozen pass may be one rank's own (a probe): it must not wait for the others
        mean, square = moments if self.frozen else mean_over_ranks(moments)
        var = square - mean.square()
        if not self.frozen:
            self._accumulate(mean.detach(), var.detach())
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale + (self.bias - mean * scale)

    def _accumulate(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        self.batches += 1
        rate = 1.0 / float(self.batches) if self.cumulative else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(var, rate)


def _projector(dim: int, hidden: int, live: int) -> nn.Sequential:
    """Linear, BatchNorm, GELU, Linear to the live columns, zeros up to ``dim``."""
    return nn.Sequential(
        nn.Linear(dim, hidden),
        BatchNorm(hidden),
        Activation("gelu_erf"),
        nn.Linear(hidden, live),
        nn.ConstantPad1d((0, dim - live), 0.0),
    )


class TrainingNetwork(nn.Module):
    """LeWM with trainable projectors, normalised inputs and an auxiliary linear state head.

    Args:
        config: Sizes.
        actions: Moments of a block, each [A].
        pixels: Moments of the image channels in [0,1], each [3].
        targets: What the state head tells; with none there is no head.
    """

    action_mean: Tensor
    action_std: Tensor
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        config: NetworkConfig,
        actions: Moments,
        pixels: tuple[tuple[float, ...], tuple[float, ...]],
        targets: StateTargets,
    ) -> None:
        super().__init__()
        self.config, self.targets = config, targets
        c = config
        self.model = LeWM(c.encoder(), c.predictor(len(actions[0])), c.proj_hidden)
        self.model.enc.proj = _projector(c.embed_dim, c.proj_hidden, c.latent_dim)
        self.model.pred.proj = _projector(c.embed_dim, c.proj_hidden, c.latent_dim)
        self.state_head = nn.Linear(c.latent_dim, targets.size) if targets.size else None
        for kind, value in zip(("mean", "std"), actions, strict=True):
            self.register_buffer(f"action_{kind}", torch.as_tensor(value, dtype=torch.float32))
        for kind, colours in zip(("mean", "std"), pixels, strict=True):
            self.register_buffer(f"pixel_{kind}", torch.tensor(colours)[:, None, None])
        self._initialise()

    def _initialise(self) -> None:
        """Set position tables and adaLN-zero; linear layers keep PyTorch's own initialisation."""
        # positions must be heard beside patch embeddings of unit scale
        spreads = {"enc.pos_embed": 0.2, "enc.cls_token": 0.02, "pred.pos_embed": 0.02}
        parameters = dict(self.model.named_parameters())
        for name, std in spreads.items():
            nn.init.trunc_normal_(parameters[name], std=std)
        for name, parameter in parameters.items():
            if ".adaln." in name:
                nn.init.zeros_(parameter)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames uint8 [B,T,s,s,3] into padded latents [B,T,D]."""
        B, T = frames.shape[:2]
        pixels = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255.0
        pixels = (pixels - self.pixel_mean) / self.pixel_std
        return self.model.enc.embed(pixels).unflatten(0, (B, T))

    def predict(self, z: Tensor, actions: Tensor) -> Tensor:
        """Predict next latents [B,T,D] from z [B,T,D] and raw blocks [B,T,A]."""
        return self.model.pred(z, (actions - self.action_mean) / self.action_std)

    def live(self, z: Tensor) -> Tensor:
        """Return the live columns [..,latent_dim] of padded latents."""
        return z[..., : self.config.latent_dim]

    @torch.no_grad()
    def rollout(self, z: Tensor, actions: Tensor) -> Tensor:
        """Roll context latents [B,T,D] through raw blocks [B,T-1+H,A] -> the H predictions."""
        T, H = z.shape[1], actions.shape[1] - z.shape[1] + 1
        for step in range(H):
            first = max(0, T + step - self.config.n_frames)
            predicted = self.predict(z[:, first:], actions[:, first : T + step])
            z = torch.cat([z, predicted[:, -1:]], 1)
        return z[:, T:]
