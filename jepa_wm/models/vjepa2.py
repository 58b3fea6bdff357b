"""vjepa2: V-JEPA 2's clip ViTs, tiled 3-D RoPE, masked or action-conditioned predictor.

Paper: V-JEPA 2, arXiv 2506.09985. References: facebookresearch/vjepa2 ``src/models`` and
    transformers ``modeling_vjepa2.py``. Quirks kept: the RoPE table is tiled, no rotation; the
    encoder decodes positions on the grid it is given (transformers: on the trained grid, so the two
    differ on other sizes), the predictor on the trained grid; mask token 1 is the default; a clip
    shorter than a tubelet is repeated to one; an odd last frame is dropped.
"""

from collections.abc import Mapping
from typing import Any

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models.ac import ACConfig, ACPredictor
from jepa_wm.models.family import Converted, Family, refuse_keys
from jepa_wm.models.masked import build_masked
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.source import Source

# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.attn_mode": ("full",),
    "jepa.pred.n_cond_tokens": (None, 2),
    "jepa.pred.cond_order": ("action,state",),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Refuse: the converter of this family comes next."""
    raise ConversionError("conversion of this family is not written yet")


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa2 bundle."""
    refuse_keys(bundle, GRAPH)
    is_ac = bundle.get("jepa.pred.kind") == "ac"
    pred = ACPredictor(ACConfig.from_bundle(bundle)) if is_ac else build_masked(bundle)
    return build_encoder(bundle, pred, still_frames=bundle.get("jepa.enc.tubelet_size"))


FAMILY = Family("vjepa2", ("patch_embed.proj.weight",), build, convert)
