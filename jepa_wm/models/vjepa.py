"""vjepa: V-JEPA's clip ViTs with a 3-D sine-cosine table, and their masked predictor.

Paper: V-JEPA, arXiv 2404.08471. Reference: facebookresearch/jepa
    ``src/models/vision_transformer.py`` and ``predictor.py``. Quirks kept: the table is stored
    (three parts cut to the width), resampled trilinearly in time too; two mask tokens, one a mask
    configuration, of which the second is the default; a still picture is shown as a whole clip of
    it.
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
    "jepa.enc.pos_type": ("sincos3d",),
    "jepa.enc.cls_token": (False,),
    "jepa.enc.n_registers": (0,),
    "jepa.enc.attn_mode": ("full",),
    "jepa.enc.image_patch_embed": (False,),
    "jepa_wm.enc.pos_interp": ("trilinear_scale",),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Refuse: the converter of this family comes next."""
    raise ConversionError("conversion of this family is not written yet")


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, build_masked(bundle), still_frames=bundle.get("jepa.enc.n_frames"))


FAMILY = Family("vjepa", ("patch_embed.proj.weight",), build, convert)
