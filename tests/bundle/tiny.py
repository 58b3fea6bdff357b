"""A tiny lewm bundle: every shape right, every weight random, a few tens of kilobytes."""

import numpy as np

from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import expected_tensors
from jepa_wm.bundle.writer import write_bundle

FREE_DIM = 16  # size given to dimensions no key states

TINY_LEWM = {
    "general.architecture": "jepa",
    "general.name": "tiny-lewm",
    "jepa.schema_version": 1,
    "jepa.family": "lewm",
    "jepa.modality": "image",
    "jepa.enc.embed_dim": 8,
    "jepa.enc.n_layer": 2,
    "jepa.enc.n_head": 2,
    "jepa.enc.ffn_dim": 16,
    "jepa.enc.patch_size": 2,
    "jepa.enc.img_size": 8,
    "jepa.enc.ln_eps": 1e-12,
    "jepa.enc.pos_type": "learned",
    "jepa.enc.cls_token": True,
    "jepa.pred.kind": "lewm",
    "jepa.pred.embed_dim": 8,
    "jepa.pred.n_layer": 1,
    "jepa.pred.n_head": 2,
    "jepa.pred.head_dim": 6,  # 2 x 6 is not the width, as in the published model
    "jepa.pred.ffn_dim": 16,
    "jepa.pred.n_frames": 3,
    "jepa.pred.action_dim": 10,
    "jepa.pred.ln_eps": 1e-5,
    "jepa.pred.adaln_eps": 1e-6,
    "jepa.pred.qkv_bias": False,
    "jepa.pre.resize_short": 8,
    "jepa.pre.crop": 8,
    "jepa.pre.resize_mode": "squash",
    "jepa_wm.action.mean": [0.1, -0.2],
    "jepa_wm.action.std": [0.5, 0.25],
    "jepa_wm.action.low": [-1.0, -1.0],
    "jepa_wm.action.high": [1.0, 1.0],
    "jepa_wm.action.block": 5,
}


def random_tensors(meta, seed=0):
    """One random float32 array per tensor the metadata asks for; scales chosen so that activations
    stay of order 1."""
    rng = np.random.default_rng(seed)
    checked, faults = check_meta(meta)
    if faults:
        raise ValueError(faults)
    tensors = {}
    for name, spec in expected_tensors(checked).items():
        shape = tuple(FREE_DIM if isinstance(dim, str) else dim for dim in spec.shape)
        values = rng.normal(size=shape)
        if name.endswith(".weight"):
            values = 1 + 0.3 * values if len(shape) == 1 else values / shape[-1] ** 0.5
        tensors[name] = values.astype(np.float32)
    return tensors


def write_tiny(path, file_type="f32", seed=0, **changes):
    """Write the tiny bundle; ``changes`` replace keys (``.`` written as ``__``), None removes
    one."""
    meta = TINY_LEWM | {name.replace("__", "."): v for name, v in changes.items()}
    meta = {name: v for name, v in meta.items() if v is not None}
    return write_bundle(path, meta, random_tensors(meta, seed), file_type)
