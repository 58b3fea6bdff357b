"""The LeWMs that ``lewm_solve.py`` times: full-size, all weights random, ours and the peer's.

The peer's weights travel as a user's would: state dict, converter, bundle, runtime.
"""

import contextlib
import io
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from jepa_wm.bundle.writer import write_bundle
from jepa_wm.convert import convert
from jepa_wm.models.lewm import LeWM, PredictorConfig
from jepa_wm.models.vit import EncoderConfig

PEER_COMMIT = "addbab40377da680dadbfbc90250fe749f6f57e3"
INSTALL_PEER = (
    "pip install --no-deps einops "
    f"git+https://github.com/galilai-group/stable-worldmodel@{PEER_COMMIT[:7]} && "
    "pip install transformers torchvision tabulate typer rich"
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a LeWM; the defaults are the published PushT model's (18 M parameters)."""

    image: int = 224
    patch: int = 14
    dim: int = 192
    enc_layers: int = 12
    enc_heads: int = 3
    enc_ffn: int = 768
    layers: int = 6
    heads: int = 16
    head_dim: int = 64
    ffn: int = 2048
    hidden: int = 2048
    frames: int = 3
    action: int = 10  # solver action size A: 5 environment actions of 2 numbers


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Fill every parameter and buffer, modulations and norms included, at order-1 activations."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue  # num_batches_tracked
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            noise = 0.5 + noise.abs()
        elif name.endswith(".weight"):
            matrix = value.ndim > 1
            noise = noise / math.sqrt(value[0].numel()) if matrix else 1 + 0.2 * noise
        else:  # biases, running means, tokens, position tables
            noise = 0.2 * noise
        value.copy_(noise)


def random_bundle(path: Path, sizes: Sizes) -> Path:
    """Write a LeWM bundle with random weights, no peer needed."""
    s = sizes
    encoder = EncoderConfig(
        embed_dim=s.dim, n_layer=s.enc_layers, n_head=s.enc_heads, ffn_dim=s.enc_ffn,
        patch_size=s.patch, img_size=s.image, ln_eps=1e-12,
    )  # fmt: skip
    predictor = PredictorConfig(
        embed_dim=s.dim, n_layer=s.layers, n_head=s.heads, head_dim=s.head_dim, ffn_dim=s.ffn,
        n_frames=s.frames, action_dim=s.action, action_hidden=4 * s.dim, proj_hidden=s.hidden,
    )  # fmt: skip
    model = LeWM(encoder, predictor, s.hidden)
    randomise(model)
    keys = ("embed_dim", "n_layer", "n_head", "ffn_dim", "patch_size", "img_size", "ln_eps")
    hidden = ("action_hidden", "proj_hidden")
    meta = {
        "general.name": "random-lewm",
        "jepa.family": "lewm",
        "jepa.modality": "image",
        **{f"jepa.enc.{key}": getattr(encoder, key) for key in keys},
        "jepa.enc.pos_type": "learned",
        "jepa.enc.cls_token": True,
        "jepa.pred.kind": "lewm",
        **{f"jepa.pred.{k}": v for k, v in vars(predictor).items() if k not in hidden},
        "jepa.pre.resize_short": s.image,
        "jepa.pre.crop": s.image,
        "jepa.pre.resize_mode": "squash",
    }
    return write_bundle(path, meta, dict(model.state_dict()))


def build_peer(sizes: Sizes) -> nn.Module:
    """Build stable-worldmodel's LeWM with random weights, as its training config composes it.

    Raises:
        ImportError: the peer is not installed.
    """
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from stable_worldmodel.wm.lewm import LeWM as PeerLeWM
        from stable_worldmodel.wm.lewm.module import MLP, Embedder, Predictor
    from transformers import ViTConfig, ViTModel

    s = sizes
    vit = ViTConfig(
        hidden_size=s.dim, num_hidden_layers=s.enc_layers, num_attention_heads=s.enc_heads,
        intermediate_size=s.enc_ffn, patch_size=s.patch, image_size=s.image,
    )  # fmt: skip
    projectors = [MLP(s.dim, s.hidden, s.dim, norm_fn=nn.BatchNorm1d) for _ in range(2)]
    model = PeerLeWM(
        encoder=ViTModel(vit, add_pooling_layer=False),
        predictor=Predictor(
            num_frames=s.frames, depth=s.layers, heads=s.heads, mlp_dim=s.ffn, input_dim=s.dim,
            hidden_dim=s.dim, dim_head=s.head_dim,
        ),
        action_encoder=Embedder(s.action, smoothed_dim=s.action, emb_dim=s.dim),
        projector=projectors[0],
        pred_proj=projectors[1],
    )  # fmt: skip
    randomise(model)
    return model.eval().requires_grad_(False)


def convert_peer(model: nn.Module, sizes: Sizes, folder: Path) -> Path:
    """Save the peer's checkpoint with its config.json and convert it; return the bundle's path."""
    torch.save(model.state_dict(), folder / "weights.pt")
    encoder = {
        "patch_size": sizes.patch, "image_size": sizes.image,
        "num_attention_heads": sizes.enc_heads,
    }  # fmt: skip
    predictor = {"heads": sizes.heads, "dim_head": sizes.head_dim}
    (folder / "config.json").write_text(json.dumps({"encoder": encoder, "predictor": predictor}))
    convert("lewm", folder, folder / "peer.gguf", "f32", {})
    return folder / "peer.gguf"
