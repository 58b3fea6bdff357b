"""ijepa: image ViTs with a 2-D sine-cosine table and, in the authors' files, a masked predictor.

Paper: I-JEPA, arXiv 2301.08243. References: facebookresearch/ijepa
    ``src/models/vision_transformer.py`` and transformers ``modeling_ijepa.py``. Quirks kept: the
    table's halves are [w | h] and it is stored, never made anew; on other grids it is resampled as
    transformers does (the authors' code cannot run them); the predictor has the encoder's number of
    heads; a source's eps is read from its config (transformers' default, 1e-12, is not the
    published 1e-6).
"""

from collections.abc import Mapping
from typing import Any

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Converted, Family, refuse_keys
from jepa_wm.models.masked import build_masked
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.source import Source

# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("sincos2d", "learned"),
    "jepa.enc.tubelet_size": (1,),
    "jepa.enc.modality_embed": (False,),
    "jepa.enc.image_patch_embed": (False,),
    "jepa.enc.attn_mode": ("full",),
    "jepa_wm.enc.pos_interp": ("size", "offset0.1", "antialias"),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Refuse: the converter of this family comes next."""
    raise ConversionError("conversion of this family is not written yet")


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a ijepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, build_masked(bundle))


FAMILY = Family("ijepa", ("patch_embed.proj.weight",), build, convert)
