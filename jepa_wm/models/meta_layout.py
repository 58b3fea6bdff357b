"""Names and shapes that the authors' checkpoints share: I-JEPA to V-JEPA 2.1 and LeVJEPA.

Their encoders call blocks ``blocks.{i}`` and their predictors ``predictor_blocks.{i}``, with the
same names inside. What a family has beyond that is in its own file.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.schema import IMAGENET_MEAN, IMAGENET_STD
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Meta
from jepa_wm.models.source import Source, SourceMap

BLOCK = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
"""Layers of a block: the bundle's name -> the authors'."""


def block_rows(target: str, source: str, names: Mapping[str, str] = BLOCK) -> SourceMap:
    """Return the map of the blocks ``target`` (``enc.blk``) from the blocks ``source``."""
    return {f"{target}.{{i}}.{a}.*": (f"{source}.{{i}}.{b}.*",) for a, b in names.items()}


def either(first: SourceMap, second: SourceMap) -> SourceMap:
    """Return a map that accepts the names of two layouts, the first where both are there."""
    targets = dict.fromkeys([*first, *second])
    return {target: first.get(target, ()) + second.get(target, ()) for target in targets}


ENCODER: SourceMap = {
    "enc.patch_embed.*": ("patch_embed.proj.*",),
    **block_rows("enc.blk", "blocks"),
}
PREDICTOR: SourceMap = {
    "pred.embed.*": ("predictor_embed.*",),
    **block_rows("pred.blk", "predictor_blocks"),
    "pred.norm.*": ("predictor_norm.*",),
    "pred.proj.*": ("predictor_proj.*",),
}
SWIGLU = {
    r".*\.mlp\.fc3\..*": "the MLP is a SwiGLU (mlp.fc3), which the schema cannot say",
}
"""What ``Source.finish`` says of layers no bundle can hold."""

SHAPE = (
    "jepa.enc.embed_dim",
    "jepa.enc.n_layer",
    "jepa.enc.ffn_dim",
    "jepa.enc.patch_size",
    "jepa.enc.tubelet_size",
)
"""Measured sizes by which a published model is known again."""


def published(measured: Mapping[str, Any], models: Mapping[tuple[int, ...], Meta]) -> Meta:
    """Return the keys that ``models`` holds for exactly these sizes (``SHAPE``), else none.

    A bare checkpoint does not state heads, image size or frames; of a published model the authors'
    code does.
    """
    return dict(models.get(tuple(measured[key] for key in SHAPE), {}))


def eval_crop(img_size: int) -> Meta:
    """Return Meta's evaluation recipe for clips: short side 256/224 of the crop, ImageNet.

    Source: facebookresearch/jepa and vjepa2 ``evals/video_classification_frozen/utils.py``.
    """
    return {
        "jepa.pre.mean": IMAGENET_MEAN,
        "jepa.pre.std": IMAGENET_STD,
        "jepa.pre.resize_short": int(img_size * 256 / 224),
        "jepa.pre.crop": img_size,
        "jepa.pre.resample": "bilinear",
        "jepa.pre.resize_mode": "shortest_edge",
    }


def flatten_kernel(tensors: dict[str, Tensor], name: str = "enc.patch_embed.weight") -> Meta:
    """Flatten a patch convolution [D,C,(U,)P,P] in place and return the sizes it shows.

    Raises:
        ConversionError: it is not a convolution with square patches.
    """
    kernel = tensors[name]
    is_square = kernel.ndim in (4, 5) and kernel.shape[-1] == kernel.shape[-2]
    if not is_square or not kernel.numel():
        raise ConversionError(
            f"patch embedding {list(kernel.shape)} is not a convolution [D,C,P,P] or [D,C,T,P,P]"
        )
    tensors[name] = kernel.flatten(1)
    return {
        "jepa.enc.embed_dim": kernel.shape[0],
        "jepa.enc.in_chans": kernel.shape[1],
        "jepa.enc.tubelet_size": kernel.shape[2] if kernel.ndim == 5 else 1,
        "jepa.enc.patch_size": kernel.shape[-1],
    }


def measure_blocks(tensors: Mapping[str, Tensor], part: str) -> Meta:
    """Read depth and MLP width of ``enc`` or ``pred`` off its tensors."""
    blocks = {name.split(".")[2] for name in tensors if name.startswith(f"{part}.blk.")}
    return {
        f"jepa.{part}.n_layer": len(blocks),
        f"jepa.{part}.ffn_dim": _rows(tensors, f"{part}.blk.0.ffn_up.weight"),
    }


def measure_masked(tensors: Mapping[str, Tensor], levels: int = 1) -> Meta:
    """Read the sizes of a masked predictor off its tensors; ``levels`` are concatenated inputs."""
    return {
        "jepa.pred.embed_dim": _rows(tensors, "pred.norm.weight"),
        "jepa.pred.n_mask_tokens": _rows(tensors, "pred.mask_tokens"),
        "jepa.pred.out_dim": _rows(tensors, "pred.proj.weight") // levels,
        **measure_blocks(tensors, "pred"),
    }


def _rows(tensors: Mapping[str, Tensor], name: str) -> int:
    if not tensors[name].ndim:
        raise ConversionError(f"{name} is a single number")
    return len(tensors[name])


def stack_mask_tokens(source: Source) -> Tensor | None:
    """Take ``mask_tokens.{j}`` [1,1,D] in order, or a single ``mask_token``, as [n,D].

    Returns None where the source has neither, as a missing tensor to ``finish``.

    Raises:
        ConversionError: they are of different widths.
    """
    names = ["mask_token"] if "mask_token" in source else []
    while "mask_token" not in names and f"mask_tokens.{len(names)}" in source:
        names.append(f"mask_tokens.{len(names)}")
    if not names:
        source.missing.append("pred.mask_tokens (from mask_tokens.0 or mask_token)")
        return None
    tokens = [source.take(name).flatten() for name in names]
    if len({len(token) for token in tokens}) > 1:
        raise ConversionError(f"mask tokens are {', '.join(str(len(t)) for t in tokens)} wide")
    return torch.stack(tokens)


def table_side(rows: int, slots: int = 1) -> int:
    """Return the side of the square grid behind a position table of ``rows`` in ``slots`` slots.

    Raises:
        ConversionError: it is none.
    """
    side = math.isqrt(rows // slots)
    if side * side * slots != rows:
        raise ConversionError(
            f"position table of {rows} rows is no square grid in {slots} time slots; give --set "
            "jepa.enc.n_frames= and jepa.enc.img_size="
        )
    return side
