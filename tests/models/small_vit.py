"""A small ViT in the authors' names, and the probes of golden/heads_*.npz, to be put on it."""

import json

import torch
from drawn import draw_weights, read
from head_cases import PROBES, D

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert
from jepa_wm.models import load

CPU = torch.device("cpu")
EXACT, FAR = 1e-5, 1e-3  # relative
GOLDEN = {name: read(f"heads_{name}.npz") for name in PROBES}
PRE = {
    "jepa.pre.mean": (0.5, 0.4, 0.3), "jepa.pre.std": (0.2, 0.3, 0.4), "jepa.pre.resize_short": 18,
    "jepa.pre.crop": 16, "jepa.pre.resample": "bilinear", "jepa.pre.resize_mode": "squash",
}  # fmt: skip
BODY = {
    "cls_token": [1, 1, D], "pos_embed": [1, 17, D], "patch_embed.proj.weight": [D, 3, 4, 4],
    "patch_embed.proj.bias": [D], "norm.weight": [D], "norm.bias": [D],
    "blocks.0.norm1.weight": [D], "blocks.0.norm1.bias": [D], "blocks.0.norm2.weight": [D],
    "blocks.0.norm2.bias": [D], "blocks.0.attn.qkv.weight": [3 * D, D],
    "blocks.0.attn.qkv.bias": [3 * D], "blocks.0.attn.proj.weight": [D, D],
    "blocks.0.attn.proj.bias": [D], "blocks.0.mlp.fc1.weight": [48, D],
    "blocks.0.mlp.fc1.bias": [48], "blocks.0.mlp.fc2.weight": [D, 48],
    "blocks.0.mlp.fc2.bias": [D],
}  # fmt: skip


def probe(name):
    return draw_weights(GOLDEN[name][0])


def probe_file(weights, layout="vjepa2"):
    """Wrap a probe as its authors save it; a second one was trained with other settings."""
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    if layout == "vjepa":
        return {"classifier": wrapped, "epoch": 20}
    other = {name: tensor + 1 for name, tensor in wrapped.items()}
    return {"classifiers": [wrapped, other], "opt": [{}, {}], "epoch": 20}


def vit_with(folder, beside=None, head=None, given=None, config=None):
    """Convert the ViT, with what is put beside its tensors, and a head's file: (model, bundle)."""
    work = folder / f"{len(list(folder.iterdir()))}"
    work.mkdir()
    torch.save(draw_weights(BODY, "body") | (beside or {}), work / "model.pt")
    if config is not None:
        (work / "config.json").write_text(json.dumps(config))
    if head is not None:
        torch.save(head, folder / "probe.pt")
    reading = Reading(head=None if head is None else folder / "probe.pt")
    keys = {"jepa.enc.n_head": 4, **PRE, **(given or {})}
    convert("hfvit", work, work / "x.gguf", "f32", keys, reading)
    return load(work / "x.gguf", CPU), Bundle.open(work / "x.gguf")
