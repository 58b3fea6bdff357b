"""A loaded bundle: encoder, predictor if there is one, and the preprocessing belonging to them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.models.layers import prepare_linears
from jepa_wm.models.preprocess import Preprocess
from jepa_wm.models.vit import EncoderConfig, ViT


class Model(nn.Module):
    """What every family builds; parameters are named like the bundle's tensors.

    Attributes:
        enc: The encoder.
        pred: The predictor, or None.
        preprocess: The bundle's pixel recipe.
    """

    def __init__(self, enc: ViT, pred: nn.Module | None, preprocess: Preprocess) -> None:
        super().__init__()
        self.enc = enc
        self.pred = pred
        self.preprocess = preprocess

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.enc.pos_embed.device

    @torch.inference_mode()
    def embed(self, frames: Tensor) -> Tensor:
        """Return the embedding of each frame: what the family stores per image, float32 [..,D].

        Args:
            frames: RGB, uint8 0-255 or float 0-1, [..,H,W,3] or [..,3,H,W]; any size.

        Raises:
            ValueError: the frames are not pictures (``Preprocess``).
        """
        pixels = self.preprocess(frames.to(self.device))
        return self.embed_pixels(pixels)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Return the embedding of preprocessed pixels float [..,C,h,w], float32 [..,D]."""
        lead = pixels.shape[:-3]
        flat = pixels.reshape(-1, *pixels.shape[-3:]).to(self.device, torch.float32)
        return self.enc.embed(flat).float().reshape(*lead, -1)

    def prepare(self, dtype: torch.dtype) -> None:
        """Reduce the matrices to ``dtype`` and pack them; norms, tokens and tables stay float32."""
        prepare_linears(self, dtype)


def encoder_config(bundle: Bundle) -> EncoderConfig:
    """Read the encoder's sizes from a bundle's ``jepa.enc.*`` keys."""
    keys = {name: f"jepa.enc.{name}" for name in EncoderConfig.__dataclass_fields__}
    keys["pos_interp"] = "jepa_wm.enc.pos_interp"
    return EncoderConfig(**{name: bundle.get(key) for name, key in keys.items()})


def load_tensors(model: nn.Module, bundle: Bundle) -> None:
    """Fill every parameter of ``model`` from the bundle's tensor of the same name.

    Separate q, k and v (``jepa.enc.qkv_fused`` false) are stacked. The bundle was checked when it
    was opened, so a name that does not fit here is a fault of ours.
    """
    state = {name: _tensor(bundle, name) for name in model.state_dict()}
    model.load_state_dict(state)
    model.eval().requires_grad_(False)


def _tensor(bundle: Bundle, name: str) -> Tensor:
    if ".attn_qkv." in name and not bundle.has(name):
        parts = [bundle.tensor(name.replace(".attn_qkv.", f".attn_{part}.")) for part in "qkv"]
        return torch.cat(parts)
    return bundle.tensor(name)


def hidden_sizes(bundle: Bundle, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of the tensors that carry a size no key states: field name -> rows."""
    return {field: bundle.shape(tensor)[0] for field, tensor in names.items()}
