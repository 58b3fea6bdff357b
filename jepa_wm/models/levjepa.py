"""levjepa: LeVJEPA's clip ViT with CLS, tiled 3-D RoPE and attention that is causal by frame.

References: MLO-lab/LeVJEPA ``module.py`` and galilai-group/LeVJEPA-VideoMix-Large. Quirks kept: CLS
    has no position, sees every patch and is seen by none; a token is one frame; a one-frame clip is
    one time slot, while a still picture is shown as a whole clip of it.
"""

from collections.abc import Mapping
from typing import Any

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Converted, Family, refuse_keys
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.source import Source

# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.modality_embed": (False,),
    "jepa.enc.image_patch_embed": (False,),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Refuse: the converter of this family comes next."""
    raise ConversionError("conversion of this family is not written yet")


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a levjepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, still_frames=bundle.get("jepa.enc.n_frames"))


FAMILY = Family("levjepa", ("patch_embed.proj.weight",), build, convert)
