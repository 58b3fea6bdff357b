"""Published sizes of the families with position tables: converted with nothing given."""

import pytest
import torch

from jepa_wm.errors import ConversionError
from jepa_wm.models import FAMILIES
from jepa_wm.models.source import Source

CASES = [  # family, rows of the table, (width, blocks, MLP, patch, tubelet), picture size
    ("ijepa", 256, (1280, 32, 5120, 14, 1), 224),
    ("ijepa", 784, (1280, 32, 5120, 16, 1), 448),
    ("ijepa", 196, (1408, 40, 6144, 16, 1), 224),
    ("vjepa", 1568, (1024, 24, 4096, 16, 2), 224),
    ("vjepa", 1568, (1280, 32, 5120, 16, 2), 224),
    ("vjepa", 4608, (1280, 32, 5120, 16, 2), 384),
]


def published_source(family, rows, sizes):
    """The authors' checkpoint of a size, without numbers: one buffer lies behind every tensor."""
    D, n_layer, ffn, patch, tubelet = sizes
    buffer = torch.zeros(ffn * D)

    def empty(*shape):
        return buffer[: torch.Size(shape).numel()].view(shape)

    def layer(name, *shape):
        return {f"{name}.weight": empty(*shape), f"{name}.bias": empty(shape[0])}

    def block(name, dim, hidden):
        return {
            **layer(f"{name}.norm1", dim), **layer(f"{name}.norm2", dim),
            **layer(f"{name}.attn.qkv", 3 * dim, dim), **layer(f"{name}.attn.proj", dim, dim),
            **layer(f"{name}.mlp.fc1", hidden, dim), **layer(f"{name}.mlp.fc2", dim, hidden),
        }  # fmt: skip

    time = (tubelet,) if family == "vjepa" else ()
    encoder = {**layer("patch_embed.proj", D, 3, *time, patch, patch), **layer("norm", D)}
    encoder["pos_embed"] = empty(1, rows, D)
    for i in range(n_layer):
        encoder |= block(f"blocks.{i}", D, ffn)
    tokens = ("mask_tokens.0", "mask_tokens.1") if time else ("mask_token",)
    predictor = {name: empty(1, 1, 384) for name in tokens}
    predictor |= {"predictor_pos_embed": empty(1, rows, 384), **layer("predictor_norm", 384)}
    predictor |= {**layer("predictor_embed", 384, D), **layer("predictor_proj", D, 384)}
    for i in range(12):
        predictor |= block(f"predictor_blocks.{i}", 384, 1536)
    return Source(encoder, siblings={"predictor": predictor})


@pytest.mark.parametrize(("family", "rows", "sizes", "img_size"), CASES)
def test_published_sizes_need_nothing_given(family, rows, sizes, img_size):
    meta, tensors = FAMILIES[family].convert(published_source(family, rows, sizes), {})
    wanted = {
        "enc.n_head": 16, "enc.img_size": img_size, "enc.ln_eps": 1e-6, "pred.n_head": 16,
        "enc.n_frames": 16 if family == "vjepa" else 1, "pred.embed_dim": 384, "pred.n_layer": 12,
        "pred.n_mask_tokens": 2 if family == "vjepa" else 1, "pred.out_dim": sizes[0],
        "pre.crop": img_size, "pre.resize_short": img_size * 256 // 224,
        "pre.mean": (0.485, 0.456, 0.406), "pre.std": (0.229, 0.224, 0.225),
        "pre.resample": "bilinear", "pre.resize_mode": "shortest_edge",
    }  # fmt: skip
    assert {key: meta[f"jepa.{key}"] for key in wanted} == wanted
    assert len(tensors) == 5 + 12 * sizes[1] + 12 * 12 + 8


@pytest.mark.parametrize(
    ("family", "rows", "sizes", "unsaid"),
    [
        ("ijepa", 324, (1280, 32, 5120, 14, 1), "jepa.enc.n_head="),  # another picture size
        ("ijepa", 256, (1280, 12, 5120, 14, 1), "jepa.enc.n_head="),  # fewer blocks
        ("vjepa", 1568, (768, 12, 3072, 16, 2), "jepa.enc.n_head=, jepa.enc.n_frames="),
    ],
)
def test_other_sizes_are_asked_for(family, rows, sizes, unsaid):
    with pytest.raises(ConversionError, match=f"give with --set: {unsaid}"):
        FAMILIES[family].convert(published_source(family, rows, sizes), {})
