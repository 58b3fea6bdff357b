"""Make levjepa.npz: outputs of tiny LeVJEPA encoders run by their authors' code, in float64.

``python tests/golden/make_levjepa.py CHECKOUT`` rewrites the file; CHECKOUT is one of
MLO-lab/LeVJEPA. Weights and inputs are drawn by name (tests/models/drawn.py), so the file holds
outputs only.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
sys.path.insert(0, sys.argv[1])

from drawn import draw, draw_weights, save, shapes
from levjepa_cases import CLIPS, D
from module import VisionTransformer


def encoder(**changes):
    sizes = dict(
        img_size=24, patch_size=8, num_frames=4, tubelet_size=1, embed_dim=D, depth=2, num_heads=2,
        mlp_ratio=2, norm_layer=partial(nn.LayerNorm, eps=1e-6), use_rope=True,
        attn_mode="block_causal",
    ) | changes  # fmt: skip
    model = VisionTransformer(**sizes).eval()
    weights = draw_weights(shapes(model))
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    return model


@torch.no_grad()
def main():
    torch.set_default_dtype(torch.float64)
    models = {
        "frames": encoder(),
        "full": encoder(attn_mode="full"),
        "tubelets": encoder(tubelet_size=2),
    }
    arrays = {
        name: models[which](draw(name, shape).transpose(1, 2).double())
        for name, (which, shape) in CLIPS.items()
    }
    save("levjepa.npz", {name: shapes(model) for name, model in models.items()}, arrays)


if __name__ == "__main__":
    main()
