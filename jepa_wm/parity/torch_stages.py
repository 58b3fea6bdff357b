"""The stages of a torch model by name, read off its modules while it runs."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jepa_wm.models import Model
from jepa_wm.spec import Inputs

SEEN = r"(enc|pred|head)\.(patch_embed|patch_embed_img|blk\.\d+|norm|hier_norm\.\d+|xattn)"
"""Modules whose output is a stage of the specification under the same name."""

Stages = dict[str, np.ndarray]


@contextmanager
def recorded(model: nn.Module, names: Mapping[str, str]) -> Iterator[Stages]:
    """Record what modules give back while the context is open, as float64.

    Args:
        model: Any module.
        names: Module name -> name of the stage.
    """
    found: Stages = {}

    def keep(stage: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            assert isinstance(tensor, Tensor)
            found[stage] = as_array(tensor)

        return hook

    modules = dict(model.named_modules())
    handles = [modules[m].register_forward_hook(keep(stage)) for m, stage in names.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as float64 numpy."""
    return tensor.detach().to("cpu", torch.float64).numpy()


@torch.inference_mode()
def run_model(model: Model, kind: str | None, inputs: Inputs) -> Stages:
    """Run every part that ``spec.run`` runs on the same inputs; stages by the same names.

    Args:
        model: The loaded bundle.
        kind: Its ``jepa.pred.kind``.
        inputs: What goes in.
    """
    pixels = torch.from_numpy(np.asarray(inputs.pixels, np.float32)).to(model.device)
    names = {m: m for m, _ in model.named_modules() if re.fullmatch(SEEN, m)}
    with recorded(model, names) as found:
        extra = (
            _whole(model, kind, inputs, pixels)
            if inputs.targets is None
            else _masked(model, inputs, pixels)
        )
    return found | {name: as_array(tensor) for name, tensor in extra.items()}


def _whole(model: Model, kind: str | None, inputs: Inputs, pixels: Tensor) -> dict[str, Tensor]:
    T = pixels.shape[1]
    clips = pixels
    if kind in ("ac", "lewm"):  # every frame by itself
        clips = pixels.flatten(0, 1)
        clips = clips[:, None] if model.enc.config.takes_clips else clips
    if model.enc.config.hier_layers:
        model.encode(clips, levels=True)
    tokens = model.encode(clips)
    extra = {"pooled": model.enc.pool(tokens, model.enc.default_pool)}
    if inputs.actions is not None and model.pred is not None:
        actions = _vectors(inputs.actions, pixels)
        if kind == "lewm":
            z = extra["pooled"].unflatten(0, (-1, T))
            extra["pred"] = model.pred(z, actions)
        else:
            extra["pred"] = _next_frame(model, tokens, actions, inputs, pixels)
    if model.head is not None:
        extra["head"] = model.head(tokens)
    return extra


def _next_frame(
    model: Model, tokens: Tensor, actions: Tensor, inputs: Inputs, pixels: Tensor
) -> Tensor:
    assert inputs.states is not None
    pred: Any = model.pred
    c = pred.config
    z = tokens.unflatten(0, actions.shape[:2])  # [B,T,N,D]
    z = F.layer_norm(z, z.shape[-1:], eps=c.norm_reps_eps) if c.normalize_reps else z
    patch = model.enc.config.patch_size
    grid = (pixels.shape[-2] // patch, pixels.shape[-1] // patch)
    return pred(z, actions, _vectors(inputs.states, pixels), grid)


def _masked(model: Model, inputs: Inputs, pixels: Tensor) -> dict[str, Tensor]:
    seen = inputs.context if inputs.ids is None else inputs.ids
    assert seen is not None and inputs.targets is not None
    prediction = model.predict(
        pixels,
        torch.from_numpy(seen),
        torch.from_numpy(inputs.targets),
        mask_index=inputs.mask_index,
        whole_clip=inputs.ids is None,
    )
    extra = {"pred": prediction.target}
    return extra if prediction.context is None else extra | {"pred.context": prediction.context}


def _vectors(values: np.ndarray, pixels: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32)).to(pixels.device)
