"""Models: torch modules built from a bundle, one family a file, found by the bundle's own keys."""

from collections.abc import Callable
from pathlib import Path

import torch

from jepa_wm.bundle.reader import Bundle
from jepa_wm.control.interfaces import WorldModel
from jepa_wm.errors import BundleError, ConfigError
from jepa_wm.models import hfvit, ijepa, levjepa, lewm, vjepa, vjepa2, vjepa2_1
from jepa_wm.models.ac_world_model import ACWorldModel
from jepa_wm.models.family import Family
from jepa_wm.models.lewm_world_model import LeWMWorldModel
from jepa_wm.models.model import Model, load_tensors

__all__ = [
    "FAMILIES",
    "WEIGHTS",
    "WORLD_MODELS",
    "Model",
    "check_weights",
    "empty_model",
    "load",
    "load_world_model",
]

FAMILIES: dict[str, Family] = {
    "ijepa": ijepa.FAMILY,
    "vjepa": vjepa.FAMILY,
    "vjepa2": vjepa2.FAMILY,
    "vjepa2_1": vjepa2_1.FAMILY,
    "levjepa": levjepa.FAMILY,
    "hfvit": hfvit.FAMILY,
    "lewm": lewm.FAMILY,
}
WEIGHTS = ("expanded", "quantised")
# predictors that imagine the next frame, by jepa.pred.kind
WORLD_MODELS: dict[str, Callable[[Model], WorldModel]] = {
    "lewm": LeWMWorldModel,
    "ac": ACWorldModel,
}


def load(
    source: Path | str | Bundle,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    weights: str = "expanded",
) -> Model:
    """Load a bundle as a model.

    Args:
        source: Path of a GGUF file, or an open bundle.
        device: Where the weights go.
        dtype: Dtype of the matrices; norms, tokens and position tables are always float32.
        weights: ``expanded`` makes floats of all weights once; ``quantised`` keeps matrices of
            block types (q8_0, q4_k, ...) as they are stored and makes floats of one in every call
            that uses it: the same numbers, in a fraction of the memory, slower.

    Raises:
        BundleError: the file is broken, or asks for something its family does not have.
        ConfigError: ``weights`` is neither.
    """
    check_weights(weights)
    bundle = source if isinstance(source, Bundle) else Bundle.open(source)
    model = empty_model(bundle)
    load_tensors(model, bundle, device, dtype, weights == "quantised")
    model.prepare(dtype)
    return model


def check_weights(weights: object) -> None:
    """Refuse what is no way to hold weights.

    Raises:
        ConfigError: it is none of ``WEIGHTS``.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights={weights!r} is unknown; use {' or '.join(WEIGHTS)}")


def empty_model(bundle: Bundle) -> Model:
    """Build the modules of a bundle without weights: what it takes to know whether it runs.

    Raises:
        BundleError: the bundle asks for something its family does not have.
    """
    with torch.device("meta"):
        return FAMILIES[bundle.family].build(bundle)


def load_world_model(
    source: Path | str | Bundle,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    weights: str = "expanded",
) -> WorldModel:
    """Load a bundle as a world model that can be planned with.

    Args:
        source: Path of a GGUF file, or an open bundle.
        device: Where the weights go.
        dtype: Dtype of the matrices; latents are always float32.
        weights: As ``load``. V-JEPA 2-AC computes with kept matrices throughout. LeWM's fast
            rollout folds norms into the predictor's matrices and holds the result as floats
            whatever is asked for; its encoder is kept, and so are the predictor's own matrices,
            which gradients go through.

    Raises:
        BundleError: as ``load``, or the bundle has no predictor of the future.
    """
    bundle = source if isinstance(source, Bundle) else Bundle.open(source)
    kind = bundle.get("jepa.pred.kind")
    if kind not in WORLD_MODELS:
        why = (
            "jepa.pred.kind is absent: it holds an encoder without a predictor"
            if kind is None
            else f"jepa.pred.kind = {kind} does not predict the next frame"
        )
        known = ", ".join(WORLD_MODELS)
        raise BundleError(f"{bundle.path} is not a world model: {why} (needed: {known})")
    model = load(bundle, device, dtype, weights)
    try:
        return WORLD_MODELS[kind](model)
    except ValueError as error:
        raise BundleError(f"{bundle.path} cannot be planned with: {error}") from error
