"""The modules of an encoder's training: encoder, its slow copy, masked predictor, state head."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jepa_wm.models.masked import MaskedConfig, MaskedPredictor
from jepa_wm.models.vit import EncoderConfig, ViT

TUBELET = 2


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Sizes of the encoder and of the masked predictor; feed-forward layers are 4 times as wide.

    Attributes:
        image_size: Input side in pixels.
        patch_size: Patch side in pixels.
        embed_dim: Width of the encoder and of its latents.
        n_layer: Encoder blocks.
        n_head: Encoder heads.
        pred_dim: Width of the masked predictor.
        pred_layers: Its blocks.
        pred_heads: Its heads.
    """

    image_size: int
    patch_size: int
    embed_dim: int
    n_layer: int
    n_head: int
    pred_dim: int
    pred_layers: int
    pred_heads: int

    def encoder(self, frames: int) -> EncoderConfig:
        """Return the encoder's configuration for clips of so many frames, each a tubelet."""
        return EncoderConfig(
            embed_dim=self.embed_dim,
            n_layer=self.n_layer,
            n_head=self.n_head,
            ffn_dim=4 * self.embed_dim,
            patch_size=self.patch_size,
            img_size=self.image_size,
            tubelet_size=TUBELET,
            n_frames=TUBELET * frames,
            pos_type="rope3d",
            cls_token=False,
        )

    def predictor(self) -> MaskedConfig:
        """Return the masked predictor's configuration."""
        return MaskedConfig(
            embed_dim=self.pred_dim,
            n_layer=self.pred_layers,
            n_head=self.pred_heads,
            ffn_dim=4 * self.pred_dim,
            out_dim=self.embed_dim,
            n_mask_tokens=1,
            grid_size=self.image_size // self.patch_size,
            enc_dim=self.embed_dim,
        )


class MaskedNetwork(nn.Module):
    """Encoder, its slow copy, masked predictor and the auxiliary head.

    Args:
        sizes: Sizes.
        frames: Frames of a clip.
        pixels: Mean and standard deviation of the image channels in [0,1].
        states: Mean and standard deviation of the state columns, [P] each.
    """

    pixel_mean: Tensor
    pixel_std: Tensor
    state_mean: Tensor
    state_std: Tensor

    def __init__(
        self,
        sizes: EncoderSizes,
        frames: int,
        pixels: tuple[tuple[float, ...], tuple[float, ...]],
        states: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__()
        self.enc = ViT(sizes.encoder(frames))
        self.pred = MaskedPredictor(sizes.predictor())
        self.state_head = nn.Linear(sizes.embed_dim, len(states[0]))
        initialise(self)
        nn.init.trunc_normal_(self.pred.mask_tokens, std=0.02)
        self.target = copy.deepcopy(self.enc).requires_grad_(False)
        for name, (mean, std) in {
            "pixel": tuple(torch.tensor(x)[:, None, None] for x in pixels),
            "state": states,
        }.items():
            self.register_buffer(f"{name}_mean", mean)
            self.register_buffer(f"{name}_std", std)

    def clips(self, frames: Tensor) -> Tensor:
        """Turn frames uint8 [B,T,s,s,3] into clips float [B,2T,3,s,s], every frame a tubelet."""
        pixels = frames.permute(0, 1, 4, 2, 3).float() / 255.0
        pixels = (pixels - self.pixel_mean) / self.pixel_std
        return pixels.repeat_interleave(TUBELET, 1)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames uint8 [B,s,s,3], each by itself, into layer-normed latents [B,N,D]."""
        return normed(self.target(self.clips(frames[:, None])))

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move the target encoder towards the encoder: target = m target + (1 - m) encoder."""
        theirs: list[Tensor] = [*self.target.parameters()]
        mine: list[Tensor] = [*self.enc.parameters()]
        torch._foreach_lerp_(theirs, mine, 1 - momentum)


def initialise(network: nn.Module) -> None:
    """Draw linear layers as the authors do: 0.02, those that end a residual branch by depth."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in network.named_parameters():
        rest = name.partition("blk.")[2]
        if rest.endswith(("attn_out.weight", "ffn_down.weight")):
            depth = int(rest.partition(".")[0]) + 1
            parameter.data.div_((2 * depth) ** 0.5)


def normed(z: Tensor) -> Tensor:
    """Layer-norm latents [..,D] without weights, in float32."""
    return F.layer_norm(z.float(), z.shape[-1:])
