"""A tiny random bundle for every family, through the real writer; other tests start from these."""

import pytest
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
TINY = {"hfvit": TINY_HFVIT, "lewm": TINY_LEWM_WIDE}


@pytest.fixture
def tiny(tmp_path):
    """Write the tiny bundle of a family: ``tiny("lewm", file_type="f16", **{"jepa.x": value})``."""

    def write(family, file_type="f32", seed=0, **changes):
        meta = {k: v for k, v in (TINY[family] | changes).items() if v is not None}
        path = tmp_path / f"{family}-{file_type}-{seed}-{len(list(tmp_path.iterdir()))}.gguf"
        return write_bundle(path, meta, random_tensors(meta, seed), file_type)

    return write
