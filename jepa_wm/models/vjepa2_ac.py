"""V-JEPA 2-AC's checkpoint: what is in a vjepa2 bundle whose predictor takes actions.

The family is vjepa2; this is the part of its converter that the masked predictor has nothing of.
The graph is ``ac``. Reference: facebookresearch/vjepa2 ``src/models/ac_predictor.py`` and
``notebooks/utils/world_model_wrapper.py`` (the norm of the latents).
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.models.family import Meta
from jepa_wm.models.meta_layout import PREDICTOR, measure_blocks
from jepa_wm.models.source import SourceMap

ANCHOR = "action_encoder.weight"
SOURCE_MAP: SourceMap = {
    **PREDICTOR,
    "pred.action_embed.*": ("action_encoder.*",),
    "pred.state_embed.*": ("state_encoder.*",),
}
SKIP = (r"extrinsics_encoder\..*",)  # always there, never read by the released model
GRAPH_META: Meta = {
    "jepa.pred.ln_eps": 1e-6,
    "jepa.pred.qkv_bias": True,
    "jepa.pred.frame_causal": True,
    "jepa.pred.cond_order": "action,state",
    "jepa.pred.normalize_reps": True,
    "jepa.pred.norm_reps_eps": 1e-5,
}
"""What the authors' code fixes, whatever the size."""


def measure(tensors: Mapping[str, Tensor]) -> Meta:
    """Read the sizes of an action-conditioned predictor off its tensors."""
    return {
        "jepa.pred.embed_dim": tensors["pred.norm.weight"].shape[0],
        "jepa.pred.out_dim": tensors["pred.proj.weight"].shape[0],
        "jepa.pred.action_dim": tensors["pred.action_embed.weight"].shape[-1],
        "jepa.pred.state_dim": tensors["pred.state_embed.weight"].shape[-1],
        "jepa.pred.n_cond_tokens": 2,
        **measure_blocks(tensors, "pred"),
    }


def mask_sizes(meta: Mapping[str, Any]) -> Meta:
    """Return the frames and the grid that the mask of a predictor with this encoder is made for.

    A frame is a slot of the encoder's clip: 64 frames in tubelets of 2 make 32.
    """
    return {
        "jepa.pred.n_frames": meta["jepa.enc.n_frames"] // meta["jepa.enc.tubelet_size"],
        "jepa.pred.grid_size": meta["jepa.enc.img_size"] // meta["jepa.enc.patch_size"],
    }
