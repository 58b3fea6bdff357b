"""Golden cases as bundles, the authors' names as the bundle's, and the distance between arrays."""

import json
import re
from pathlib import Path

import numpy as np
import torch

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle

GOLDEN = Path(__file__).parent.parent / "golden"

BLOCK = {
    "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
RENAMES = [
    (r"predictor_blocks\.(\d+)\.(.+)\.(weight|bias)", r"pred.blk.\1.{}.\3"),
    (r"pooler\.blocks\.(\d+)\.(.+)\.(weight|bias)", r"head.blk.\1.{}.\3"),
    (r"blocks\.(\d+)\.(.+)\.(weight|bias)", r"enc.blk.\1.{}.\3"),
    (r"(patch_embed|patch_embed_img)\.proj\.(.+)", r"enc.\1.\2"),
    (r"norms_block\.(.+)", r"enc.hier_norm.\1"),
    (r"(pos_embed|cls_token|norm\..+)", r"enc.\1"),
    (r"predictor_(embed|norm|proj|proj_context)\.(.+)", r"pred.\1.\2"),
    (r"predictor_pos_embed", "pred.pos_embed"),
    (r"(action|state)_encoder\.(.+)", r"pred.\1_embed.\2"),
    (r"pooler\.query_tokens", "head.query"),
    (r"pooler\.cross_attention_block\.norm1\.(.+)", r"head.xattn.ln_kv.\1"),
    (r"pooler\.cross_attention_block\.norm2\.(.+)", r"head.xattn.ln2.\1"),
    (r"pooler\.cross_attention_block\.xattn\.q\.(.+)", r"head.xattn.q.\1"),
    (r"pooler\.cross_attention_block\.mlp\.fc1\.(.+)", r"head.xattn.ffn_up.\1"),
    (r"pooler\.cross_attention_block\.mlp\.fc2\.(.+)", r"head.xattn.ffn_down.\1"),
    (r"linear\.(.+)", r"head.cls.\1"),
]


def named(state, part="enc"):
    """Give the tensors of the authors' state dict their names and shapes in a bundle.

    ``part`` says whose ``img_mod_embed`` and ``video_mod_embed`` they are.
    """
    tensors = {}
    for name, values in state.items():
        kind = name.rsplit(".", 1)[-1]
        if name.startswith("mask_token"):
            rows = tensors.get("pred.mask_tokens", values[0, :0])
            tensors["pred.mask_tokens"] = torch.cat([rows, values[0]])
        elif "xattn.kv." in name:
            k, v = values.chunk(2)
            tensors |= {f"head.xattn.k.{kind}": k, f"head.xattn.v.{kind}": v}
        elif name.endswith("_mod_embed"):
            tensors[f"{part}.mod_embed_{name.split('_')[0]}"] = values.flatten()
        elif not name.startswith("extrinsics_encoder"):  # never read
            is_token = name == "cls_token"
            shaped = values.flatten() if is_token else values.squeeze(0)
            tensors[_name(name)] = values.flatten(1) if values.ndim > 3 else shaped
    return tensors


def _name(name):
    for pattern, target in RENAMES:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(target).format(BLOCK[match[2]] if "{}" in target else "")
    raise KeyError(name)


def distance(found, wanted):
    """The largest difference over the largest value wanted; sizes must agree."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.size == wanted.size, (found.shape, wanted.shape)
    return np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()


def full(meta):
    """Metadata with short keys (``enc.n_head``) as a bundle has it."""
    keys = {k if k.startswith(("jepa", "general")) else f"jepa.{k}": v for k, v in meta.items()}
    return {"general.architecture": "jepa", "jepa.schema_version": 1} | keys


def read(name):
    """Read spec_<name>.npz: metadata, tensors by bundle name, and its cases by name."""
    arrays = np.load(GOLDEN / f"spec_{name}.npz")
    flat, tensors, at = arrays["weights"].astype(np.float32) / 64, {}, 0
    for key, shape in json.loads(str(arrays["layout"])).items():
        size = int(np.prod(shape))
        tensors[key] = flat[at : at + size].reshape(shape)
        at += size
    cases = {}
    for key in arrays.files:
        if "/" in key:
            case, part = key.split("/")
            cases.setdefault(case, {})[part] = arrays[key]
    return full(json.loads(str(arrays["meta"]))), tensors, cases


def bundle_of(folder, meta, tensors, name="case.gguf"):
    return Bundle.open(write_bundle(folder / name, meta, tensors))
