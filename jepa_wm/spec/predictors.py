"""The three predictors: masked tokens, the next frame of an arm, the next latent of LeWM."""

import math

import numpy as np

from jepa_wm.spec.encoder import Stages
from jepa_wm.spec.ops import (
    Array,
    Attention,
    Weights,
    attend,
    block,
    feed_forward,
    layer_norm,
    linear,
    mlp,
    normalise,
    silu,
)
from jepa_wm.spec.positions import decode_ids, rescale_to, rope_angles


def masked(
    w: Weights, context: Array, ids: tuple[Array, Array], mask_index: int = 1, image: bool = False
) -> Stages:
    """Yield the stages of the masked predictor: ``pred.blk.{i}``, ``pred.norm``, ``pred``, ...

    Rows are the context, then the targets, in the caller's order (the references sort them by id
    and undo it, which attention does not see). ``pred`` [B,n_target,levels*out] predicts the
    encoder's tokens at the target ids; ``pred.context`` the context ones, where the bundle has
    ``pred.proj_context``. Several blocks of targets or contexts are pairs run one by one.

    Args:
        w: The bundle.
        context: Encoder tokens of the context ids, float64 [B,n_context,D]; with
            ``jepa.pred.n_hier_in`` levels the normed levels, concatenated [B,n_context,levels*D].
        ids: Context ids int [B,n_context] and target ids int [B,n_target].
        mask_index: Which mask token the targets start from, modulo their number. The references
            use 1 unless told otherwise.
        image: The clip went through the tokenizer for single frames: add the image's modality
            vector, not the video's.

    Source: ijepa ``src/models/vision_transformer.py``; jepa and vjepa2 ``src/models/predictor.py``;
        vjepa2 ``app/vjepa_2_1/models/predictor.py``.
    """
    levels, both = w.get("jepa.pred.n_hier_in"), np.concatenate(ids, 1)
    x = (
        linear(w, "pred.embed", context)
        if levels == 1
        else mlp(w, "pred.embed", context, "gelu_erf")
    )
    tokens = w("pred.mask_tokens")
    token = tokens[mask_index % len(tokens)]
    x = np.concatenate([x, np.broadcast_to(token, (*ids[1].shape, len(token)))], 1)
    if w.get("jepa.enc.pos_type") != "rope3d":
        x = x + w("pred.pos_embed")[both]  # the stored grid only: upstream never resamples it
    if w.get("jepa.pred.modality_embed"):
        x = x + w("pred.mod_embed_img" if image else "pred.mod_embed_video")
    how = Attention(w.get("jepa.pred.n_head"), _masked_angles(w, both))
    n_context = ids[0].shape[1]
    for i in range(w.get("jepa.pred.n_layer")):
        x = _block(w, i, x, how)
        yield f"pred.blk.{i}", x
    x = layer_norm(w, "pred.norm", x, w.get("jepa.pred.ln_eps"))
    yield "pred.norm", x
    yield "pred", linear(w, "pred.proj", x[:, n_context:])
    if w.get("jepa.pred.context_proj"):
        yield "pred.context", linear(w, "pred.proj_context", x[:, :n_context])


def _block(w: Weights, i: int, x: Array, how: Attention) -> Array:
    return block(w, f"pred.blk.{i}", x, how, w.get("jepa.pred.ln_eps"), w.get("jepa.pred.act"))


def _head_dim(w: Weights) -> int:
    return int(w.get("jepa.pred.head_dim"))


def _angles(w: Weights, positions: Array) -> Array:
    layout, theta = w.get("jepa.pred.rope_freq_layout"), w.get("jepa.enc.rope_theta")
    return rope_angles(positions, _head_dim(w), layout, theta)


def _masked_angles(w: Weights, ids: Array) -> Array | None:
    """Return RoPE angles [B,n,d]; ids are decoded on the training grid, whatever was encoded."""
    if w.get("jepa.enc.pos_type") != "rope3d":
        return None
    side = w.get("jepa.pred.grid_size")
    positions = decode_ids(ids, side, side)
    if w.get("jepa.pred.rope_interpolate"):
        positions = rescale_to(positions, side, side, w.get("jepa.pred.rope_ref_grid"))
    return _angles(w, positions)


def action_conditioned(
    w: Weights, latents: Array, actions: Array, states: Array, grid: tuple[int, int] | None = None
) -> Stages:
    """Yield the stages of the V-JEPA 2-AC predictor: ``pred.blk.{i}``, ``pred.norm``, ``pred``.

    ``pred`` [B,T*hw,D]: block t predicts frame t+1 from frames, actions and states 0..t. In the
    blocks every frame's patches stand behind its conditioning rows, whose order attention does not
    see: they share a position and are dropped at the end.

    Args:
        w: The bundle.
        latents: Encoder tokens of T frames one after the other, float64 [B,T*hw,D], normalised
            where ``jepa.pred.normalize_reps`` says so (``normalise_latents``).
        actions: float64 [B,T,A].
        states: float64 [B,T,P].
        grid: Rows and columns of a frame; None: square. Columns are scaled to the span of the
            rows, w' = w rows / columns, as in a reference built for that grid.

    Source: vjepa2 ``src/models/ac_predictor.py``; ``src/models/utils/modules.py``,
        ``ACRoPEAttention``.
    """
    B, T = actions.shape[:2]
    hw = latents.shape[1] // T
    rows, columns = grid or (math.isqrt(hw), math.isqrt(hw))
    embedded = {
        "action": linear(w, "pred.action_embed", actions),
        "state": linear(w, "pred.state_embed", states),
    }
    leading = [embedded[name] for name in w.get("jepa.pred.cond_order").split(",")]
    n = len(leading)
    patches = linear(w, "pred.embed", latents).reshape(B, T, hw, -1)
    x = np.concatenate([*(row[:, :, None] for row in leading), patches], 2)  # [B,T,n+hw,D]
    x = x.reshape(B, T * (n + hw), -1)
    positions = np.zeros((T, n + hw, 3))  # a conditioning row: its frame, and no place in it
    positions[..., 0] = np.arange(T)[:, None]
    within = decode_ids(np.arange(hw), rows, columns)[:, 1:]
    positions[:, n:, 1:] = within * rows / np.array([rows, columns])
    frame = np.repeat(np.arange(T), n + hw)
    mask = frame[:, None] >= frame[None, :] if w.get("jepa.pred.frame_causal") else None
    angles = _angles(w, positions.reshape(-1, 3))
    how = Attention(w.get("jepa.pred.n_head"), angles, mask)
    for i in range(w.get("jepa.pred.n_layer")):
        x = _block(w, i, x, how)
        yield f"pred.blk.{i}", x
    x = x.reshape(B, T, n + hw, -1)[:, :, n:].reshape(B, T * hw, -1)
    x = layer_norm(w, "pred.norm", x, w.get("jepa.pred.ln_eps"))
    yield "pred.norm", x
    yield "pred", linear(w, "pred.proj", x)


def normalise_latents(w: Weights, latents: Array) -> Array:
    """Return latents as the AC predictor takes them, and as its predictions are fed back."""
    is_normed = w.get("jepa.pred.normalize_reps")
    return normalise(latents, w.get("jepa.pred.norm_reps_eps")) if is_normed else latents


def lewm(w: Weights, latents: Array, actions: Array) -> Stages:
    """Yield the stages of the LeWM predictor: ``pred.blk.{i}``, ``pred.norm``, ``pred``.

    ``pred`` [B,T,D]: row t predicts the latent of frame t+1 from frames and actions 0..t. Positions
    count from the window's first frame.

    Args:
        w: The bundle.
        latents: Projected latents of at most ``jepa.pred.n_frames`` frames, float64 [B,T,D].
        actions: The action leaving each frame, float64 [B,T,A].

    Source: stable-worldmodel ``wm/lewm/module.py``, ``ConditionalBlock``.
    """
    eps = w.get("jepa.pred.ln_eps")
    T = latents.shape[1]
    condition = silu(mlp(w, "pred.action_embed", actions, w.get("jepa.pred.action_act")))
    x = latents + w("pred.pos_embed")[:T]
    for i in range(w.get("jepa.pred.n_layer")):
        x = _lewm_block(w, f"pred.blk.{i}", x, condition)
        yield f"pred.blk.{i}", x
    x = layer_norm(w, "pred.norm", x, eps)
    yield "pred.norm", x
    yield "pred", mlp(w, "pred.proj", x, w.get("jepa.pred.proj_act"))


def _lewm_block(w: Weights, name: str, x: Array, condition: Array) -> Array:
    """Return an adaLN block: modulated non-affine norm, then the layer's own affine norm, gated."""
    eps, adaln_eps = w.get("jepa.pred.ln_eps"), w.get("jepa.pred.adaln_eps")
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = np.split(
        linear(w, f"{name}.adaln", condition), 6, -1
    )
    h = normalise(x, adaln_eps) * (1 + scale_a) + shift_a
    q, k, v = np.split(linear(w, f"{name}.attn_qkv", layer_norm(w, f"{name}.ln1", h, eps)), 3, -1)
    causal = Attention(w.get("jepa.pred.n_head"), mask=np.tri(x.shape[1], dtype=bool))
    x = x + gate_a * linear(w, f"{name}.attn_out", attend(q, k, v, causal))
    h = normalise(x, adaln_eps) * (1 + scale_m) + shift_m
    h = layer_norm(w, f"{name}.ln2", h, eps)
    return x + gate_m * feed_forward(w, name, h, w.get("jepa.pred.act"))
