"""A tiny random bundle for every family, through the real writer; other tests start from these."""

import os
import signal
import threading

# before anything loads torch: test processes side by side, and the commands they start, share cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from bundle.tiny import TINY_LEWM, random_tensors

from jepa_wm.bundle.writer import write_bundle

TINY_HFVIT = {
    "general.architecture": "jepa",
    "jepa.schema_version": 1,
    "general.name": "tiny-hfvit",
    "jepa.family": "hfvit",
    "jepa.modality": "image",
    "jepa.enc.embed_dim": 32,
    "jepa.enc.n_layer": 2,
    "jepa.enc.n_head": 4,
    "jepa.enc.ffn_dim": 64,
    "jepa.enc.patch_size": 4,
    "jepa.enc.img_size": 16,
    "jepa.enc.pos_type": "learned",
    "jepa.enc.cls_token": True,
    "jepa.enc.n_registers": 3,
    "jepa.enc.layer_scale": True,
    "jepa.pre.resize_short": 18,
    "jepa.pre.crop": 16,
    "jepa.pre.resample": "bicubic",
    "jepa.pre.resize_mode": "shortest_edge",
}
# wide enough that quantised blocks of 32 exist
TINY_LEWM_WIDE = TINY_LEWM | {
    "jepa.enc.embed_dim": 32,
    "jepa.pred.embed_dim": 32,
    "jepa.pred.head_dim": 8,
    "jepa.pred.n_layer": 2,
}
SMALL_ENCODER = {
    "general.architecture": "jepa",
    "jepa.schema_version": 1,
    "jepa.enc.embed_dim": 64,
    "jepa.enc.n_layer": 2,
    "jepa.enc.n_head": 2,
    "jepa.enc.ffn_dim": 96,
    "jepa.enc.patch_size": 4,
    "jepa.enc.img_size": 16,
    "jepa.pre.resize_short": 18,
    "jepa.pre.crop": 16,
}
MASKED = {
    "jepa.pred.kind": "masked",
    "jepa.pred.embed_dim": 64,
    "jepa.pred.n_layer": 2,
    "jepa.pred.n_head": 2,  # head width 32, whose segments have an odd half
    "jepa.pred.ffn_dim": 96,
    "jepa.pred.n_mask_tokens": 3,
}
CLIPS = {"jepa.enc.tubelet_size": 2, "jepa.enc.n_frames": 4}
AC = {
    "jepa.pred.kind": "ac",
    "jepa.pred.embed_dim": 64,
    "jepa.pred.n_layer": 2,
    "jepa.pred.n_head": 2,
    "jepa.pred.ffn_dim": 96,
    "jepa.pred.grid_size": 4,
    "jepa.pred.n_frames": 3,
    "jepa.pred.action_dim": 7,
    "jepa.pred.state_dim": 7,
    "jepa.pred.n_cond_tokens": 2,
}
# an arm's world model (V-JEPA 2-AC): what is left of vjepa2 beside its frames and poses
ARM = {
    **SMALL_ENCODER, **CLIPS, **AC, "jepa.family": "vjepa2", "jepa.pred.n_frames": 9,
    "jepa.pred.normalize_reps": True, "jepa.pred.n_mask_tokens": None,
    "jepa.head.kind": None, "jepa.head.n_pool_layers": None,
    "jepa.head.n_classes": None, "jepa.head.labels": None,
}  # fmt: skip
HEAD = {"jepa.head.n_classes": 5, "jepa.head.labels": ["a", "b", "c", "d", "e"]}
TINY = {
    "hfvit": TINY_HFVIT,
    "lewm": TINY_LEWM_WIDE,
    "ijepa": SMALL_ENCODER | MASKED | {"jepa.family": "ijepa", "jepa.pred.n_mask_tokens": 1},
    "vjepa": SMALL_ENCODER | MASKED | CLIPS | {"jepa.family": "vjepa"},
    "vjepa2": SMALL_ENCODER
    | MASKED
    | CLIPS
    | HEAD
    | {
        "jepa.family": "vjepa2",
        "jepa.head.kind": "attentive_pool",
        "jepa.head.n_pool_layers": 1,
    },
    "vjepa2_1": SMALL_ENCODER
    | MASKED
    | CLIPS
    | {
        "jepa.family": "vjepa2_1",
        "jepa.enc.rope_freq_layout": "interleaved",
        "jepa.enc.rope_interpolate": True,
        "jepa.enc.rope_ref_grid": 3,
        "jepa.enc.modality_embed": True,
        "jepa.enc.image_patch_embed": True,
        "jepa.enc.hier_layers": [0, 1],
        "jepa.pred.n_hier_in": 2,
        "jepa.pred.modality_embed": True,
        "jepa.pred.context_proj": True,
        "jepa.pred.out_dim": 48,
    },
    "levjepa": SMALL_ENCODER
    | {
        "jepa.family": "levjepa",
        "jepa.enc.n_frames": 3,
        "jepa.enc.cls_token": True,
        "jepa.enc.attn_mode": "block_causal",
    },
}

if threading.current_thread() is threading.main_thread():
    # what is started in the background ignores Ctrl-C, and so would the commands under test
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tiny(tmp_path):
    """Write the tiny bundle of a family: ``tiny("lewm", file_type="f16", **{"jepa.x": value})``."""

    def write(family, file_type="f32", seed=0, **changes):
        meta = {k: v for k, v in (TINY[family] | changes).items() if v is not None}
        path = tmp_path / f"{family}-{file_type}-{seed}-{len(list(tmp_path.iterdir()))}.gguf"
        return write_bundle(path, meta, random_tensors(meta, seed), file_type)

    return write


@pytest.fixture
def arm(tiny):
    """Write a tiny V-JEPA 2-AC bundle: ``arm(**{"jepa.x": value})``."""
    return lambda file_type="f32", **changes: tiny("vjepa2", file_type, **ARM | changes)


@pytest.fixture
def threads():
    """Set the number of threads; it is what it was afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
