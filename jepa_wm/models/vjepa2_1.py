"""vjepa2_1: V-JEPA 2.1's ViTs for images and clips, interleaved 3-D RoPE, and their predictor.

Reference: facebookresearch/vjepa2 ``app/vjepa_2_1``. Quirks kept: positions are rescaled to the
    grid of 256 px in the encoder but not in the predictor, which decodes ids on the trained grid; a
    clip of exactly one frame is an image, with a patch embedding and a modality vector of its own;
    four levels with a norm each, of which the last is the plain output; ViT-g and G feed all four
    to the predictor.
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
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.attn_mode": ("full",),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Refuse: the converter of this family comes next."""
    raise ConversionError("conversion of this family is not written yet")


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa2_1 bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, build_masked(bundle))


FAMILY = Family("vjepa2_1", ("patch_embed.proj.weight",), build, convert)
