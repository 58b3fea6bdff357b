"""What the checkpoints of I-JEPA and V-JEPA share: position tables, and predictors that use one.

Their authors' code fixes the epsilon and the activation of every model and trains with ImageNet
statistics; heads, frames and picture size stand nowhere but in the tables of published sizes.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Meta, settle
from jepa_wm.models.meta_layout import PREDICTOR as PLAIN_PREDICTOR
from jepa_wm.models.meta_layout import (
    flatten_kernel,
    measure_blocks,
    measure_masked,
    stack_mask_tokens,
)
from jepa_wm.models.source import Source, SourceMap

PREDICTOR: SourceMap = {**PLAIN_PREDICTOR, "pred.pos_embed": ("predictor_pos_embed",)}
CODE: Meta = {"jepa.enc.ln_eps": 1e-6, "jepa.enc.act": "gelu_erf"}
"""Keys that no checkpoint states: the same for every size in the authors' code."""
CLS_TOKEN = {r"cls_token": "there is a CLS token, which this family does not have"}
"""What ``Source.finish`` says of a checkpoint of another kind."""


def take_encoder(source: Source, rows: SourceMap) -> dict[str, Tensor]:
    """Take an encoder's tensors as stored; a source without blocks misses the first one's."""
    return source.fill(rows, max(1, source.layers(rows["enc.blk.{i}.ln1.*"])))


def take_predictor(source: Source) -> dict[str, Tensor]:
    """Take the predictor beside the encoder, mask tokens in their order; none: nothing."""
    part = source.part("predictor")
    if part is None:
        return {}
    n_layer = max(1, part.layers(PREDICTOR["pred.blk.{i}.ln1.*"]))
    tensors = part.fill(PREDICTOR, n_layer)
    tokens = stack_mask_tokens(part)
    return tensors if tokens is None else tensors | {"pred.mask_tokens": tokens}


def measure_encoder(tensors: dict[str, Tensor]) -> Meta:
    """Bring kernel and tables to the bundle's shapes, in place, and read the encoder's sizes.

    Raises:
        ConversionError: a tensor has not the axes it should have.
    """
    for name in ("enc.pos_embed", "pred.pos_embed"):
        if name in tensors:
            tensors[name] = _flat_table(name, tensors[name])
    return flatten_kernel(tensors) | measure_blocks(tensors, "enc")


def _flat_table(name: str, table: Tensor) -> Tensor:
    if table.ndim != 2 and (table.ndim != 3 or len(table) != 1):
        raise ConversionError(f"{name} is {list(table.shape)}, wanted [1,N,D]")
    return table.reshape(table.shape[-2:])


def check_grid(meta: Mapping[str, Any], rows: int) -> None:
    """Refuse sizes that do not make the rows of the position table.

    Raises:
        ConversionError: naming the keys and both numbers.
    """
    slots = meta["jepa.enc.n_frames"] // meta["jepa.enc.tubelet_size"]
    side = meta["jepa.enc.img_size"] // meta["jepa.enc.patch_size"]
    if slots * side * side != rows:
        raise ConversionError(
            f"the position table has {rows} rows, but jepa.enc.img_size "
            f"{meta['jepa.enc.img_size']} and jepa.enc.n_frames {meta['jepa.enc.n_frames']} make "
            f"{slots} x {side} x {side} patches"
        )


def predictor_meta(tensors: Mapping[str, Tensor], meta: Meta, given: Mapping[str, Any]) -> Meta:
    """Settle the keys of a masked predictor; its blocks have as many heads as the encoder's.

    Returns nothing where there is no predictor.
    """
    if "pred.norm.weight" not in tensors:
        return {}
    stated = {
        "jepa.pred.kind": "masked",
        "jepa.pred.n_head": meta["jepa.enc.n_head"],
        "jepa.pred.ln_eps": CODE["jepa.enc.ln_eps"],
        "jepa.pred.act": CODE["jepa.enc.act"],
    }
    return settle(measure_masked(tensors), stated, of_part(given, "pred"))


def of_part(given: Mapping[str, Any], part: str) -> Meta:
    """Return the keys given for ``enc`` or ``pred``, ours included."""
    return {k: v for k, v in given.items() if k.startswith((f"jepa.{part}.", f"jepa_wm.{part}."))}
