"""Preprocessing of a source as ``jepa.pre.*`` keys, from the files beside it or from ``--set``.

Nothing is assumed: a source that does not say how its pixels are made is refused with the keys to
give.
"""

import math
from collections.abc import Mapping
from typing import Any

from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Meta

NEEDED = {
    "jepa.pre.mean": "0.485,0.456,0.406 for ImageNet's",
    "jepa.pre.std": "0.229,0.224,0.225 for ImageNet's",
    "jepa.pre.resize_short": "pixels, such as 256",
    "jepa.pre.crop": "pixels, such as 224",
    "jepa.pre.resample": "bilinear or bicubic",
    "jepa.pre.resize_mode": "squash or shortest_edge",
}
"""Keys a source must state, and what they look like."""
MAX_SIDE = 1 << 16  # px
# the class of a processor whose file names none, by the model, and what a class does unless told
CLASSES = {"vit": "ViT", "ijepa": "ViT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}
BIT_DEFAULTS = {"do_center_crop": True, "resample": 3}
PIL_FILTERS = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}


def preprocess_meta(
    processor: Mapping[str, Any], config: Mapping[str, Any], given: Mapping[str, Any]
) -> Meta:
    """Return all ``jepa.pre.*`` keys of a source; ``given`` wins.

    Args:
        processor: preprocessor_config.json of a Hugging Face checkpoint, or empty.
        config: config.json, whose ``pretrained_cfg`` is used for timm checkpoints.
        given: Keys given by the user.

    Raises:
        ConversionError: a step of the recipe has no key, or keys nobody states.
    """
    meta: Meta = {"jepa.pre.rescale": 1 / 255}
    if processor:
        meta |= _from_processor(processor, _class(processor, config))
    elif isinstance(config.get("pretrained_cfg"), Mapping):
        meta |= _from_timm(config["pretrained_cfg"])
    meta |= {key: value for key, value in given.items() if key.startswith("jepa.pre.")}
    unknown = [key for key in NEEDED if key not in meta]
    if unknown:
        raise ConversionError(
            "nothing beside the weights says how pixels are prepared; give with --set "
            + ", ".join(f"{key}= ({NEEDED[key]})" for key in unknown)
        )
    return meta


def _class(processor: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the name of the processor's class, or how that of the model starts."""
    named = processor.get("image_processor_type") or processor.get("feature_extractor_type")
    return str(named or CLASSES.get(str(config.get("model_type"))))


def _from_processor(processor: Mapping[str, Any], kind: str) -> Meta:
    """Read a Hugging Face image processor: one resize, one crop and one normalisation at most."""
    if kind.startswith("Bit"):
        processor = BIT_DEFAULTS | dict(processor)
    switched_off = [
        name for name in ("do_resize", "do_rescale", "do_normalize") if processor.get(name) is False
    ]
    if switched_off:
        raise ConversionError(
            f"preprocessor_config.json: {', '.join(switched_off)} false is not representable"
        )
    size, squash = _size(processor, kind)
    crop = size
    if processor.get("do_center_crop"):
        crop = _square(processor.get("crop_size"), "crop_size")
    if squash and crop != size:
        raise ConversionError(
            f"preprocessor_config.json: a resize to {size}x{size} and then a crop of {crop} is not "
            "representable"
        )
    (rescale,) = _numbers([processor.get("rescale_factor", 1 / 255)], "rescale_factor")
    names = {"jepa.pre.mean": "image_mean", "jepa.pre.std": "image_std"}
    statistics = {k: _numbers(processor[n], n) for k, n in names.items() if processor.get(n)}
    return statistics | {
        "jepa.pre.resize_short": size,
        "jepa.pre.crop": crop,
        "jepa.pre.resample": _filter(processor.get("resample", 2)),
        "jepa.pre.resize_mode": "squash" if squash else "shortest_edge",
        "jepa.pre.rescale": rescale,
    }


def _numbers(found: Any, name: str) -> tuple[float, ...]:
    """Return a list of numbers as floats."""
    is_list = isinstance(found, list | tuple)
    if not is_list or not all(isinstance(x, int | float) and math.isfinite(x) for x in found):
        raise ConversionError(f"preprocessor_config.json: {name} {found!r} is no list of numbers")
    return tuple(float(x) for x in found)


def _whole(found: Any, name: str) -> int:
    """Return a number of pixels."""
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < MAX_SIDE:
        raise ConversionError(f"preprocessor_config.json: {name} {found!r} is no number of pixels")
    return found


def _size(processor: Mapping[str, Any], kind: str) -> tuple[int, bool]:
    """Return the side a picture is resized to, and whether both of its sides are."""
    size = processor.get("size")
    if isinstance(size, int):
        # a bare number is a square for ViT's processor, a short side elsewhere
        return _whole(size, "size"), kind.startswith("ViT")
    if isinstance(size, Mapping) and size.get("longest_edge") is not None:
        raise ConversionError(
            f"preprocessor_config.json: size {size!r} is not representable: longest_edge"
        )
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return _whole(size["shortest_edge"], "size"), False
    return _square(size, "size"), True


def _square(size: Any, name: str) -> int:
    if isinstance(size, int):
        return _whole(size, name)
    if isinstance(size, Mapping) and size.get("height") == size.get("width") and "height" in size:
        return _whole(size["height"], name)
    raise ConversionError(f"preprocessor_config.json: {name} {size!r} is not a square")


def _filter(resample: Any) -> str:
    if not isinstance(resample, int | str) or resample not in PIL_FILTERS:
        raise ConversionError(f"resampling filter {resample!r} is not bilinear or bicubic")
    return PIL_FILTERS[resample]


def _from_timm(pretrained: Mapping[str, Any]) -> Meta:
    """Read timm's ``pretrained_cfg``: short side floor(size / crop_pct), centre crop.

    Source: timm ``data/transforms_factory.py``, ``transforms_imagenet_eval``.
    """
    channels, height, width = pretrained["input_size"]
    mode = pretrained.get("crop_mode", "center")
    crop_pct = float(pretrained.get("crop_pct", 0.875))
    if height != width or channels != 3 or mode not in ("center", "squash"):
        raise ConversionError(
            f"pretrained_cfg: input_size {[channels, height, width]}, crop_mode {mode!r} "
            "is not representable"
        )
    if mode == "squash" and crop_pct != 1:
        raise ConversionError(
            "pretrained_cfg: crop_mode squash with crop_pct < 1 is not representable"
        )
    return {
        "jepa.pre.mean": tuple(pretrained["mean"]),
        "jepa.pre.std": tuple(pretrained["std"]),
        "jepa.pre.resize_short": math.floor(height / crop_pct),
        "jepa.pre.crop": height,
        "jepa.pre.resample": _filter(pretrained.get("interpolation", "bicubic")),
        "jepa.pre.resize_mode": "squash" if mode == "squash" else "shortest_edge",
    }
