"""Make spec_*.npz: tiny random models of the authors' code, with the tensors named as in a bundle.

``python tests/golden/make_spec.py CASE CHECKOUT`` rewrites one file; CASE is ijepa (a checkout of
facebookresearch/ijepa), vjepa (facebookresearch/jepa), or vjepa2, ac and pool (a checkout of
facebookresearch/vjepa2, which needs timm and einops). Every parameter and table is random, a
multiple of 1/64 that fits a byte; inputs are multiples of 1/32. Outputs are computed in float64
and stored as float32.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from spec.golden import named

EPS6 = partial(nn.LayerNorm, eps=1e-6)


class Case:
    """Collects a model's tensors under their bundle names, and its inputs and outputs."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors, self.arrays = {}, {}

    def randomise(self, model):
        state = {}
        for name, tensor in model.state_dict().items():
            values = torch.randn(tensor.shape, generator=self.generator)
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            is_norm = tensor.ndim == 1 and name.endswith("weight")
            values = (values * scale + is_norm).mul(64).round().clamp(-127, 127) / 64
            tensor.copy_(values)
            state[name] = values
        self.tensors |= named(state)
        return model.eval().double()

    def draw(self, *shape):
        values = torch.randn(shape, generator=self.generator).mul(32).round().clamp(-127, 127)
        return (values / 32).double()

    def ids(self, batch, total, *counts):
        """Disjoint subsets of ``total`` ids, other ones for every row of the batch."""
        rows = [
            torch.randperm(total, generator=self.generator)[: sum(counts)] for _ in range(batch)
        ]
        return torch.stack(rows).split(counts, 1)

    def keep(self, name, inputs, outputs):
        for key, value in {**inputs, **outputs}.items():
            array = value.detach().numpy()
            kind = np.int16 if key.endswith("ids") else np.float32
            self.arrays[f"{name}/{key}"] = array.astype(np.float16 if key in inputs and kind is
                                                        np.float32 else kind)  # fmt: skip

    def save(self, case, meta):
        flat = torch.cat([t.flatten() for t in self.tensors.values()]) * 64
        layout = {name: list(t.shape) for name, t in self.tensors.items()}
        path = Path(__file__).with_name(f"spec_{case}.npz")
        np.savez_compressed(
            path, meta=np.array(json.dumps(meta)), layout=np.array(json.dumps(layout)),
            weights=flat.numpy().astype(np.int8), **self.arrays,
        )  # fmt: skip
        print(path, path.stat().st_size, "bytes")


def ijepa():
    from src.models.vision_transformer import VisionTransformer, VisionTransformerPredictor

    c, B = Case(1), 2
    enc = c.randomise(
        VisionTransformer(
            img_size=[16], patch_size=4, embed_dim=24, depth=2, num_heads=2, norm_layer=EPS6
        )
    )
    pred = c.randomise(VisionTransformerPredictor(
        num_patches=16, embed_dim=24, predictor_embed_dim=12, depth=2, num_heads=2,
        norm_layer=EPS6))  # fmt: skip
    pixels = c.draw(B, 3, 16, 16)
    c.keep("native", {"pixels": pixels}, {"tokens": enc(pixels)})
    seen, one, other = c.ids(B, 16, 7, 4, 4)
    for name, wanted in (("one", one), ("other", other)):
        outputs = {
            "tokens": enc(pixels, [seen]),
            "pred": pred(enc(pixels, [seen]), [seen], [wanted]),
        }
        c.keep(name, {"pixels": pixels, "ids": seen, "target_ids": wanted}, outputs)
    c.save("ijepa", {
        "family": "ijepa", "enc.embed_dim": 24, "enc.n_layer": 2, "enc.n_head": 2,
        "enc.ffn_dim": 96, "enc.patch_size": 4, "enc.img_size": 16, "pred.kind": "masked",
        "pred.embed_dim": 12, "pred.n_layer": 2, "pred.n_head": 2, "pred.ffn_dim": 48,
        "pred.n_mask_tokens": 1,
    })  # fmt: skip


def vjepa():
    from src.models.predictor import VisionTransformerPredictor
    from src.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "num_frames": 4, "tubelet_size": 2, "num_heads": 2,
             "norm_layer": EPS6, "uniform_power": True, "embed_dim": 24}  # fmt: skip
    c, B = Case(2), 2
    enc = c.randomise(VisionTransformer(depth=1, **sizes))
    pred = c.randomise(
        VisionTransformerPredictor(
            predictor_embed_dim=12, depth=1, use_mask_tokens=True, num_mask_tokens=2, **sizes
        )
    )
    for name, size in (("native", (4, 12, 12)), ("longer", (6, 12, 12)), ("other", (2, 8, 20))):
        pixels = c.draw(1, 3, *size)
        c.keep(name, {"pixels": pixels.transpose(1, 2)}, {"tokens": enc(pixels)})
    pixels = c.draw(B, 3, 4, 12, 12)
    seen, wanted = c.ids(B, 18, 8, 6)
    for index in (0, 3):
        tokens = enc(pixels, [seen])
        outputs = {"tokens": tokens, "pred": pred(tokens, None, [seen], [wanted], index)}
        inputs = {"pixels": pixels.transpose(1, 2), "ids": seen, "target_ids": wanted}
        c.keep(f"mask_index_{index}", inputs, outputs)
    c.save("vjepa", {
        "family": "vjepa", "enc.embed_dim": 24, "enc.n_layer": 1, "enc.n_head": 2,
        "enc.ffn_dim": 96, "enc.patch_size": 4, "enc.img_size": 12, "enc.tubelet_size": 2,
        "enc.n_frames": 4, "pred.kind": "masked", "pred.embed_dim": 12, "pred.n_layer": 1,
        "pred.n_head": 2, "pred.ffn_dim": 48, "pred.n_mask_tokens": 2,
    })  # fmt: skip


def vjepa2():
    from src.models.predictor import VisionTransformerPredictor
    from src.models.vision_transformer import VisionTransformer

    sizes = {"img_size": (12, 12), "patch_size": 4, "tubelet_size": 2, "num_heads": 2,
             "norm_layer": EPS6, "use_rope": True, "embed_dim": 44}  # fmt: skip
    c, B = Case(3), 2
    enc = c.randomise(VisionTransformer(depth=1, mlp_ratio=2, num_frames=4, **sizes))
    pred = c.randomise(
        VisionTransformerPredictor(
            predictor_embed_dim=32,
            depth=1,
            mlp_ratio=2,
            num_frames=8,
            use_mask_tokens=True,
            num_mask_tokens=3,
            **(sizes | {"num_heads": 1}),
        )
    )
    for name, size in (("native", (4, 12, 12)), ("odd", (5, 12, 12)), ("other", (2, 8, 16))):
        pixels = c.draw(1, 3, *size)
        c.keep(name, {"pixels": pixels.transpose(1, 2)}, {"tokens": enc(pixels)})
    pixels = c.draw(B, 3, 4, 12, 12)
    (seen,) = c.ids(B, 18, 7)
    (wanted,) = c.ids(B, 36, 6)  # half of them behind the clip
    tokens = enc(pixels, [seen])
    outputs = {"tokens": tokens, "pred": pred(tokens, [seen], [wanted], 4)}
    inputs = {"pixels": pixels.transpose(1, 2), "ids": seen, "target_ids": wanted}
    c.keep("mask_index_4", inputs, outputs)
    c.save("vjepa2", {
        "family": "vjepa2", "enc.embed_dim": 44, "enc.n_layer": 1, "enc.n_head": 2,
        "enc.ffn_dim": 88, "enc.patch_size": 4, "enc.img_size": 12, "enc.tubelet_size": 2,
        "enc.n_frames": 4, "pred.kind": "masked", "pred.embed_dim": 32, "pred.n_layer": 1,
        "pred.n_head": 1, "pred.ffn_dim": 64, "pred.n_mask_tokens": 3,
    })  # fmt: skip


def ac():
    from src.models.ac_predictor import VisionTransformerPredictorAC
    from src.models.vision_transformer import VisionTransformer

    c, B, T = Case(4), 2, 3
    enc = c.randomise(
        VisionTransformer(
            img_size=(8, 12),
            patch_size=4,
            num_frames=6,
            tubelet_size=2,
            embed_dim=24,
            depth=1,
            num_heads=2,
            norm_layer=EPS6,
            use_rope=True,
        )
    )
    pred = c.randomise(VisionTransformerPredictorAC(
        img_size=(8, 12), patch_size=4, num_frames=6, tubelet_size=2, embed_dim=24,
        predictor_embed_dim=32, depth=1, num_heads=1, mlp_ratio=2, norm_layer=EPS6,
        action_embed_dim=3))  # fmt: skip
    frames, actions, states = c.draw(B, T, 3, 8, 12), c.draw(B, T, 3), c.draw(B, T, 3)
    still = frames.flatten(0, 1)[:, :, None].repeat(1, 1, 2, 1, 1)  # [B*T,C,2,h,w]
    tokens = enc(still)
    z = nn.functional.layer_norm(tokens, (24,)).reshape(B, -1, 24)
    pred.attn_mask = pred.attn_mask.clone()
    outputs = {"tokens": tokens, "pred": pred(z, actions, states)}
    c.keep("window", {"pixels": frames, "actions": actions, "states": states}, outputs)
    c.save("ac", {
        "family": "vjepa2", "enc.embed_dim": 24, "enc.n_layer": 1, "enc.n_head": 2,
        "enc.ffn_dim": 96, "enc.patch_size": 4, "enc.img_size": 8, "enc.tubelet_size": 2,
        "enc.n_frames": 6, "pred.kind": "ac", "pred.embed_dim": 32, "pred.n_layer": 1,
        "pred.n_head": 1, "pred.ffn_dim": 64, "pred.action_dim": 3, "pred.state_dim": 3,
        "pred.grid_size": 2, "pred.n_frames": 3, "pred.n_cond_tokens": 2,
        "pred.normalize_reps": True,
    })  # fmt: skip


def pool():
    from src.models.attentive_pooler import AttentiveClassifier
    from src.models.vision_transformer import VisionTransformer

    c = Case(5)
    enc = c.randomise(VisionTransformer(
        img_size=(8, 8), patch_size=4, num_frames=2, tubelet_size=2, embed_dim=24, depth=1,
        num_heads=2, norm_layer=EPS6, use_rope=True))  # fmt: skip
    # its norms have nn.LayerNorm's own eps, its heads are not the encoder's
    head = c.randomise(AttentiveClassifier(embed_dim=24, num_heads=3, depth=2, num_classes=5))
    pixels = c.draw(2, 3, 4, 8, 8)
    outputs = {"tokens": enc(pixels), "head": head(enc(pixels))}
    c.keep("clip", {"pixels": pixels.transpose(1, 2)}, outputs)
    c.save("pool", {
        "family": "vjepa2", "enc.embed_dim": 24, "enc.n_layer": 1, "enc.n_head": 2,
        "enc.ffn_dim": 96, "enc.patch_size": 4, "enc.img_size": 8, "enc.tubelet_size": 2,
        "enc.n_frames": 2, "head.kind": "attentive_pool", "head.n_classes": 5,
        "head.n_pool_layers": 1, "head.n_head": 3, "head.ln_eps": 1e-5,
    })  # fmt: skip


CASES = {"ijepa": ijepa, "vjepa": vjepa, "vjepa2": vjepa2, "ac": ac, "pool": pool}

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    with torch.no_grad():
        CASES[sys.argv[1]]()
