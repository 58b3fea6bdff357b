"""What ``ac_rollout.py`` and ``ac_memory.py`` measure: random action-conditioned models.

The peer is the authors' predictor, from a checkout of facebookresearch/vjepa2; its weights travel
as a user's would: checkpoint, converter, bundle, runtime.
"""

import importlib
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import expected_tensors
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.control.interfaces import Context
from jepa_wm.convert import convert
from jepa_wm.models.pose import POSE_DIM

CPU = torch.device("cpu")
PATCH = 16
CLIP = 16  # frames of the encoder's clip: 8 slots of the predictor


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; the encoder in front has one block, since no frame is encoded in a rollout.

    Attributes:
        width: Token width of the predictor.
        heads: Its heads.
        layers: Its blocks.
        latent: Width D of the latents.
        side: Patches along a side.
    """

    width: int = 768
    heads: int = 12
    layers: int = 6
    latent: int = 768
    side: int = 16

    @property
    def rows(self) -> int:
        """Rows of a frame: action, state and patches."""
        return 2 + self.side**2


@dataclass(frozen=True)
class Peer:
    """The authors' code.

    Attributes:
        encoder: VisionTransformer of one block.
        predictor: VisionTransformerPredictorAC.
        move: ``compute_new_pose``, through scipy: poses and actions [S,1,7] -> poses [S,1,7].
    """

    encoder: nn.Module
    predictor: nn.Module
    move: Callable[[Tensor, Tensor], Tensor]

    def cast(self, dtype: torch.dtype) -> "Peer":
        """Return the peer with a predictor of this dtype, cast in place."""
        return replace(self, predictor=self.predictor.to(dtype))


def build_peer(sizes: Sizes, checkout: Path | None) -> Peer:
    """Build the authors' models with every parameter random.

    Raises:
        ImportError: the checkout is not there or lacks a package it needs (timm, scipy, tqdm).
    """
    if checkout is not None:
        sys.path.insert(0, str(checkout))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vit = importlib.import_module("src.models.vision_transformer")
            ac = importlib.import_module("src.models.ac_predictor")
            moves = importlib.import_module("notebooks.utils.mpc_utils")
    finally:
        if checkout is not None:
            sys.path.remove(str(checkout))
    side = sizes.side * PATCH
    clip = {"patch_size": PATCH, "num_frames": CLIP, "tubelet_size": 2, "embed_dim": sizes.latent}
    torch.manual_seed(0)
    encoder = vit.VisionTransformer(
        (side, side), depth=1, num_heads=sizes.heads, use_rope=True, qkv_bias=True, **clip
    )
    predictor = ac.vit_ac_predictor(
        img_size=(side, side),
        predictor_embed_dim=sizes.width,
        depth=sizes.layers,
        num_heads=sizes.heads,
        **clip,
    )
    for module in (encoder, predictor):
        _randomise(module.eval().requires_grad_(False))
    return Peer(encoder, predictor, moves.compute_new_pose)


def _randomise(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        is_norm = "norm" in name and name.endswith("weight")
        spread = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
        parameter.normal_(1.0 if is_norm else 0.0, spread)


def convert_peer(peer: Peer, sizes: Sizes, folder: Path) -> Path:
    """Save the peer as its authors save checkpoints and convert it into a bundle."""
    source, path = folder / "peer.pt", folder / "peer.gguf"
    entries = {
        "encoder": {f"module.backbone.{n}": t for n, t in peer.encoder.state_dict().items()},
        "predictor": {f"module.{n}": t for n, t in peer.predictor.state_dict().items()},
    }
    torch.save(entries, source)
    given = {
        "jepa.enc.n_head": sizes.heads,
        "jepa.pred.n_head": sizes.heads,
        "jepa.enc.img_size": sizes.side * PATCH,
        "jepa.enc.n_frames": CLIP,
    }
    convert("vjepa2", source, path, "f32", given)
    return path


def random_bundle(path: Path, sizes: Sizes) -> Path:
    """Write a bundle with random weights, no peer needed."""
    side = sizes.side * PATCH
    meta = {
        "general.architecture": "jepa",
        "jepa.schema_version": 1,
        "jepa.family": "vjepa2",
        "jepa.modality": "video",
        "jepa.enc.embed_dim": sizes.latent,
        "jepa.enc.n_layer": 1,
        "jepa.enc.n_head": sizes.heads,
        "jepa.enc.ffn_dim": 4 * sizes.latent,
        "jepa.enc.patch_size": PATCH,
        "jepa.enc.tubelet_size": 2,
        "jepa.enc.img_size": side,
        "jepa.enc.n_frames": CLIP,
        "jepa.pred.kind": "ac",
        "jepa.pred.embed_dim": sizes.width,
        "jepa.pred.n_layer": sizes.layers,
        "jepa.pred.n_head": sizes.heads,
        "jepa.pred.ffn_dim": 4 * sizes.width,
        "jepa.pred.out_dim": sizes.latent,
        "jepa.pred.action_dim": POSE_DIM,
        "jepa.pred.state_dim": POSE_DIM,
        "jepa.pred.n_cond_tokens": 2,
        "jepa.pred.n_frames": CLIP // 2,
        "jepa.pred.grid_size": sizes.side,
        "jepa.pred.normalize_reps": True,
        "jepa.pre.resize_short": side,
        "jepa.pre.crop": side,
    }
    checked, _ = check_meta(meta)
    rng = np.random.default_rng(0)
    tensors = {}
    for name, spec in expected_tensors(checked).items():
        shape = tuple(int(size) for size in spec.shape)
        spread = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.3
        middle = 1.0 if "norm" in name or ".ln" in name else 0.0
        tensors[name] = middle * name.endswith("weight") + spread * rng.standard_normal(
            shape, np.float32
        )
    return write_bundle(path, meta, tensors, "f32")


def problem(sizes: Sizes, candidates: int, horizon: int, frames: int) -> tuple[Context, Tensor]:
    """Draw a context of ``frames`` frames, B = 1, and candidates [1,S,H,7]."""
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator)
    z = F.layer_norm(draw(1, frames, sizes.side**2, sizes.latent), (sizes.latent,))
    poses = torch.rand(1, frames, POSE_DIM, generator=generator) * 0.5 + 0.2
    context = Context(z, 0.1 * draw(1, frames - 1, POSE_DIM), poses)
    return context, 0.1 * draw(1, candidates, horizon, POSE_DIM)


@torch.inference_mode()
def peer_rollout(peer: Peer, context: Context, actions: Tensor) -> Tensor:
    """Roll out as the published loop does -> z float32 [1,S,H,N,D].

    Every step predicts from all frames so far, keeps the last, norms and appends it; poses go
    through scipy. Numbers are in the predictor's dtype, poses in float32. Source:
    ``notebooks/utils/world_model_wrapper.py`` (``step_predictor``) and ``mpc_utils.py`` (``cem``).
    """
    assert context.proprio is not None
    dtype = next(peer.predictor.parameters()).dtype
    S, H = actions.shape[1:3]
    frames = context.z.to(dtype).repeat(S, 1, 1, 1)
    known, poses = context.actions.repeat(S, 1, 1), context.proprio.repeat(S, 1, 1)
    N, D = frames.shape[2:]
    for step in range(H):
        known = torch.cat([known, actions[0, :, step : step + 1]], 1)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            rows = frames.flatten(1, 2)
            nxt = peer.predictor(rows, known.to(dtype), poses.to(dtype))[:, -N:]
            nxt = F.layer_norm(nxt, (D,)).view(S, 1, N, D).to(dtype)
        frames = torch.cat([frames, nxt], 1)
        poses = torch.cat([poses, peer.move(poses[:, -1:], known[:, -1:])], 1)
    return frames[None, :, -H:].float()
