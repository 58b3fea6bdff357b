"""A reference implementation's stages: the source folder run by transformers or timm.

Only classes of these libraries are built, from the config's numbers; no code of the folder is
executed, and nothing is fetched.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConfigError
from jepa_wm.parity.inputs import Pass
from jepa_wm.parity.torch_stages import Stages, as_array, recorded
from jepa_wm.spec import Inputs

BODY = {
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
    "vit": ("ViTModel", "ViTForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
    "vjepa2": ("VJEPA2Model", "VJEPA2ForVideoClassification"),
}
"""transformers' classes by ``model_type``: the body, and the body with a classifier."""

HOLDS = {
    "ijepa": ("ijepa",),
    "vit": ("hfvit", "lewm"),
    "dinov2": ("hfvit",),
    "dinov2_with_registers": ("hfvit",),
    "vjepa2": ("vjepa2",),
    "timm": ("hfvit", "lewm", "ijepa"),
}
"""Families whose encoder a source of each kind can hold."""

SIZES = ("embed_dim", "n_layer", "patch_size")
"""Keys of a bundle's encoder that its source must share; else no stage can be compared."""

TIMM_ARGUMENTS = {
    "img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "mlp_ratio",
    "qkv_bias", "init_values", "class_token", "no_embed_class", "reg_tokens", "global_pool",
}  # fmt: skip
BROKEN = (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError, ImportError)
"""What the libraries raise on a folder they cannot use."""

STAGES = (
    (r"(?:.*\.)?(?:layers?|blocks)\.(\d+)", "enc.blk.{}"),
    (r"(?:.*\.)?pooler\.self_attention_layers\.(\d+)", "head.blk.{}"),
    (r"(?:(?!predictor|pooler).*\.)?(?:layernorm|norm)", "enc.norm"),
)
"""Module names -> stages. The predictor's blocks see sorted rows, so they are no stages."""


def load_reference(folder: Path, bundle: Bundle) -> nn.Module:
    """Build the reference model of a source folder (``config.json`` and weights), float32.

    Raises:
        ConfigError: no folder of a known kind, the library that runs it is not installed, or the
            bundle is of another family or size.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(
            f"--against {folder}: no readable config.json; wanted a folder of transformers or timm "
            "(the authors' own files need the authors' code)"
        ) from error
    config = config if isinstance(config, dict) else {}
    kind = "timm" if "architecture" in config else str(config.get("model_type"))
    if kind not in HOLDS:
        raise ConfigError(
            f"--against {folder}: model_type {kind!r} has no reference here "
            f"(known: {', '.join(BODY)}, and timm)"
        )
    if bundle.family not in HOLDS[kind]:
        raise ConfigError(f"--against {folder}: is {kind}, the bundle is {bundle.family}")
    model = _timm(folder, config) if kind == "timm" else _transformers(folder, config, kind)
    found, wanted = _sizes(model), tuple(bundle.get(f"jepa.enc.{name}") for name in SIZES)
    if found != wanted:
        sizes = (", ".join(map("{} {}".format, SIZES, s)) for s in (found, wanted))
        raise ConfigError("--against {}: has {}; the bundle has {}".format(folder, *sizes))
    return model


def _sizes(model: Any) -> tuple[int, ...]:
    """Return what ``SIZES`` names of a reference."""
    if "timm" in type(model).__module__:
        return model.embed_dim, len(model.blocks), model.patch_embed.patch_size[0]
    config, patch = model.config, model.config.patch_size
    side = patch if isinstance(patch, int) else patch[0]
    return config.hidden_size, config.num_hidden_layers, side


def _transformers(folder: Path, config: dict[str, Any], kind: str) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise _missing(folder, "transformers") from error
    named = (config.get("architectures") or [""])[0]
    body, classifier = BODY[kind]
    reference = getattr(transformers, classifier if named == classifier else body, None)
    if reference is None:
        raise ConfigError(
            f"--against {folder}: transformers {transformers.__version__} does not know {kind}"
        )
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its report of missing weights is ours
    from safetensors import SafetensorError

    try:
        model, info = reference.from_pretrained(
            folder, local_files_only=True, attn_implementation="sdpa",
            output_loading_info=True,
        )  # fmt: skip
    except (*BROKEN, SafetensorError) as error:
        raise _unusable(folder, "transformers", error) from error
    # HF's own pooler is no part of any feature; whatever else is missing would be random
    absent = [name for name in info["missing_keys"] if "pooler.dense." not in name]
    if absent:
        raise ConfigError(f"--against {folder}: has no weights {', '.join(sorted(absent)[:5])}")
    return model.float().eval()


def _timm(folder: Path, config: dict[str, Any]) -> nn.Module:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
        from timm.models import vision_transformer as vit
    except ImportError as error:
        raise _missing(folder, "timm") from error
    arguments = config.get("model_args") or {}
    name = str(config["architecture"])
    # an architecture may name a repository, and arguments a pickle: only what is known is passed
    unknown = sorted(set(arguments) - TIMM_ARGUMENTS)
    if name not in vit.__all__:
        unknown.append(f"architecture {name!r}")
    if unknown:
        raise ConfigError(f"--against {folder}: unknown to timm's ViT here: {', '.join(unknown)}")
    try:
        model = getattr(vit, name)(
            pretrained=False, num_classes=config.get("num_classes", 0), dynamic_img_size=True,
            **arguments,
        )  # fmt: skip
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (*BROKEN, SafetensorError) as error:
        raise _unusable(folder, "timm", error) from error
    return model.eval()


def _unusable(folder: Path, library: str, error: Exception) -> ConfigError:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(f"--against {folder}: {library} cannot load it: {first}")


def _missing(folder: Path, library: str) -> ConfigError:
    return ConfigError(
        f"--against {folder}: its reference is {library}, which is not installed "
        f"(pip install {library})"
    )


@torch.inference_mode()
def run_reference(model: nn.Module, one: Pass) -> Stages:
    """Run a reference model on a pass; stages by the names of the specification.

    None for a pass the reference does not have: a masked one where it has no predictor, and other
    grids with V-JEPA 2, whose positions transformers decodes on the training grid throughout.

    Raises:
        ConfigError: nothing but another grid was asked for.
    """
    inputs, name = one.inputs, type(model).__name__
    if inputs.targets is not None and name != "VJEPA2Model":
        return {}
    if name.startswith("VJEPA2"):
        config: Any = model.config
        if np.shape(inputs.pixels)[-2:] != (config.crop_size, config.crop_size):
            if one.name == "other":
                return {}
            raise ConfigError(
                f"--size: transformers places V-JEPA 2's patches on a grid of {config.crop_size} "
                "pixels whatever the input is; leave --size out with --against"
            )
    pixels = torch.from_numpy(np.asarray(inputs.pixels, np.float32))
    with recorded(model, _names(model)) as found:
        output = model(pixels, **_arguments(model, inputs))
    predicted = getattr(output, "predictor_output", None)
    if predicted is not None and inputs.targets is not None:
        found["pred"] = as_array(predicted.last_hidden_state)
    if getattr(output, "logits", None) is not None:
        found["head"] = as_array(output.logits)
    return found


def _names(model: nn.Module) -> dict[str, str]:
    names = {}
    for module, _ in model.named_modules():
        for pattern, stage in STAGES:
            match = re.fullmatch(pattern, module)
            if match and "predictor" not in module:
                names[module] = stage.format(*match.groups())
                break
    return names


def _arguments(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    kind = getattr(getattr(model, "config", None), "model_type", "timm")
    if kind in ("vit", "ijepa"):
        return {"interpolate_pos_encoding": True}
    if type(model).__name__ != "VJEPA2Model":
        return {}
    if inputs.targets is None or inputs.context is None:
        return {"skip_predictor": True}
    masks = (torch.from_numpy(mask) for mask in (inputs.context, inputs.targets))
    return {key: [mask] for key, mask in zip(("context_mask", "target_mask"), masks, strict=True)}
