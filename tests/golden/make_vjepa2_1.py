"""Make vjepa2_1.npz: outputs of tiny V-JEPA 2.1 models run by their authors' code, in float64.

``python tests/golden/make_vjepa2_1.py CHECKOUT`` rewrites the file; CHECKOUT is one of
facebookresearch/vjepa2 with ``app/vjepa_2_1``, which needs timm and einops. Weights and inputs are
drawn by name (tests/models/drawn.py), so the file holds outputs only.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
sys.path.insert(0, sys.argv[1])

from app.vjepa_2_1.models.predictor import VisionTransformerPredictor
from app.vjepa_2_1.models.vision_transformer import VisionTransformer
from drawn import draw, draw_weights, save, shapes
from vjepa2_1_cases import CLIPS, CONTEXT, KEPT, LEVELS, PREDICTIONS, TARGETS, D

COMMON = dict(
    img_size=64, patch_size=16, num_frames=4, tubelet_size=2, embed_dim=D, use_rope=True,
    norm_layer=partial(nn.LayerNorm, eps=1e-6), img_temporal_dim_size=1, num_heads=2, mlp_ratio=2,
)  # fmt: skip


def encoder(**changes):
    sizes = COMMON | dict(depth=12, interpolate_rope=True) | changes
    return VisionTransformer(**sizes).eval()


def predictor(**changes):
    sizes = COMMON | dict(
        depth=4, predictor_embed_dim=44, use_mask_tokens=True, num_mask_tokens=3, num_frames=16,
        return_all_tokens=True,
    ) | changes  # fmt: skip
    return VisionTransformerPredictor(**sizes).eval()


def fill(model, salt):
    weights = draw_weights(shapes(model), salt)
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    return model


@torch.no_grad()
def main():
    torch.set_default_dtype(torch.float64)
    models = {
        "encoder": encoder(),
        "patch14": encoder(patch_size=14, img_size=56),
        "one": predictor(n_output_distillation=1, teacher_embed_dim=24),
        "four": predictor(n_output_distillation=4),
    }
    layouts = {name: shapes(fill(model, name)) for name, model in models.items()}
    arrays = {}
    for name, (which, shape) in CLIPS.items():
        pixels = draw(name, shape).transpose(1, 2).double()
        arrays[name] = models[which](pixels)
    models["encoder"].return_hierarchical = True
    arrays["levels"] = models["encoder"](draw("levels", LEVELS).transpose(1, 2).double())
    models["encoder"].return_hierarchical = False
    clip = draw("kept", CLIPS["native"][1]).transpose(1, 2).double()
    arrays["kept"] = models["encoder"](clip, torch.tensor(KEPT)[None])
    for name, (which, kind, index) in PREDICTIONS.items():
        levels = 1 if which == "one" else 4
        seen = draw(name, (1, len(CONTEXT), levels * D)).double()
        ids = torch.tensor(CONTEXT)[None], torch.tensor(TARGETS[kind])[None]
        target, context = models[which](seen, *ids, mod=kind, mask_index=index)
        arrays |= {f"{name}/target": target, f"{name}/context": context}
    save("vjepa2_1.npz", layouts, arrays)


if __name__ == "__main__":
    main()
