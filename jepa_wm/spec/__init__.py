"""The executable specification: what every bundle computes, in float64 numpy.

Independent of the torch runtime (``jepa_wm.models``): it reads the bundle's keys and tensors and
follows the published graphs, one plain function a piece. It is slow on purpose; ``python -m
jepa_wm.check`` holds the runtime against it. Read ``encoder``, then ``predictors`` and ``heads``;
``ops`` and ``positions`` hold the pieces.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jepa_wm.bundle.reader import Bundle
from jepa_wm.spec.encoder import Stages, as_clip, encode, gather, n_prefix, tokenizer
from jepa_wm.spec.heads import attentive_pool, linear_cls
from jepa_wm.spec.ops import Array, Weights
from jepa_wm.spec.predictors import action_conditioned, lewm, masked, normalise_latents

__all__ = ["Inputs", "run", "stages"]


@dataclass(frozen=True)
class Inputs:
    """What goes into a bundle.

    Attributes:
        pixels: Preprocessed, float: images [B,C,h,w] or clips [B,T,C,h,w]. For one that predicts
            the next frame, [B,T,C,h,w] are the T frames of a window, each encoded by itself.
        ids: Patches the encoder sees, int [B,n]; None: all.
        context: Patches the masked predictor sees, int [B,n] of the encoded ones; None: all that
            were encoded.
        targets: Patches it predicts, int [B,m]; None: no masked prediction, but the head.
        mask_index: Mask token of the targets.
        actions: Action leaving each frame, float [B,T,A]; None: no rollout step.
        states: Pose at each frame, float [B,T,P] (ac).
    """

    pixels: Array
    ids: Array | None = None
    context: Array | None = None
    targets: Array | None = None
    mask_index: int = 1
    actions: Array | None = None
    states: Array | None = None


def run(bundle: Bundle, inputs: Inputs) -> dict[str, Array]:
    """Return every stage by name, float64, in order: tokenizer, blocks, norm, pooled, pred, head.

    Args:
        bundle: Any bundle.
        inputs: What goes in; decides which of the bundle's parts are run.
    """
    return dict(stages(bundle, inputs))


def stages(bundle: Bundle, inputs: Inputs) -> Iterator[tuple[str, Array]]:
    """Yield what ``run`` returns, one stage at a time."""
    w = Weights(bundle)
    kind = bundle.get("jepa.pred.kind")
    done: dict[str, Array] = {}
    pixels = np.asarray(inputs.pixels, np.float64)
    frames = _frames(w, pixels) if kind in ("ac", "lewm") else pixels
    for name, stage in encode(w, frames, inputs.ids):
        # of the blocks only the ends are needed later
        if not name.startswith("enc.blk."):
            done[name] = stage
        yield name, stage
    if kind == "masked" and inputs.targets is not None:
        yield from _masked(w, done, inputs)
    elif kind in ("ac", "lewm") and inputs.actions is not None:
        yield from _next_frame(w, done, inputs, pixels.shape)
    head = HEADS.get(bundle.get("jepa.head.kind"))
    if head is not None and inputs.targets is None:
        yield from head(w, done["enc.norm"])


HEADS = {"attentive_pool": attentive_pool, "linear_cls": linear_cls}


def _frames(w: Weights, pixels: Array) -> Array:
    """Return a window's frames as inputs of their own: a frame fills a tubelet by repetition."""
    flat = pixels.reshape(-1, *pixels.shape[-3:])  # [B*T,C,h,w]
    return flat if w.get("jepa.enc.tubelet_size") == 1 else as_clip(w, flat)


def _masked(w: Weights, done: dict[str, Array], inputs: Inputs) -> Stages:
    tokens = done["enc.norm"][:, n_prefix(w) :]
    levels = w.get("jepa.pred.n_hier_in")
    if levels > 1:  # the last levels, on the feature axis
        n = len(w.get("jepa.enc.hier_layers"))
        tokens = np.concatenate([done[f"enc.hier_norm.{k}"] for k in range(n - levels, n)], -1)
    everything = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape[:2])
    encoded = everything if inputs.ids is None else inputs.ids
    context = encoded if inputs.context is None else inputs.context
    if inputs.context is not None:
        tokens = gather(tokens, rows_of(encoded, context))
    assert inputs.targets is not None
    is_image = tokenizer(w, as_clip(w, inputs.pixels)) == "enc.patch_embed_img"
    return masked(w, tokens, (context, inputs.targets), inputs.mask_index, is_image)


def rows_of(encoded: Array, wanted: Array) -> Array:
    """Return at which row of ``encoded`` [B,n] each id of ``wanted`` [B,m] stands."""
    return (encoded[:, None, :] == wanted[:, :, None]).argmax(-1)


def _next_frame(
    w: Weights, done: dict[str, Array], inputs: Inputs, shape: tuple[int, ...]
) -> Stages:
    B, T = shape[:2]
    actions = np.asarray(inputs.actions, np.float64)
    if w.get("jepa.pred.kind") == "lewm":
        return lewm(w, done["pooled"].reshape(B, T, -1), actions)
    latents = normalise_latents(w, done["enc.norm"])
    rows, columns = (side // w.get("jepa.enc.patch_size") for side in shape[-2:])
    latents = latents.reshape(B, T * rows * columns, -1)
    states = np.asarray(inputs.states, np.float64)
    return action_conditioned(w, latents, actions, states, (rows, columns))
