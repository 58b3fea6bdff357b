"""Make vjepa2.npz and vjepa2_ac.npz: outputs of tiny models run by their authors, in float64.

``python tests/golden/make_vjepa2.py CHECKOUT`` rewrites the files; CHECKOUT is one of
facebookresearch/vjepa2, which needs timm and einops. Weights and inputs are drawn by name
(tests/models/drawn.py), so the files hold outputs only.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
sys.path.insert(0, sys.argv[1])

from drawn import draw, draw_weights, save, shapes
from src.models.ac_predictor import VisionTransformerPredictorAC
from src.models.predictor import VisionTransformerPredictor
from src.models.vision_transformer import VisionTransformer
from vjepa2_cases import (
    AC_CASES,
    AC_DIM,
    AC_FRAMES,
    ACTION,
    CLIPS,
    FAINT_NAMES,
    FRAMES,
    KEPT,
    MASK_INDICES,
    PATCH,
    SIDE,
    STATE,
    TARGETS,
    D,
    faint,
)

COMMON = dict(
    patch_size=PATCH, tubelet_size=2, embed_dim=D, depth=2, num_heads=2, mlp_ratio=1.5,
    use_rope=True, norm_layer=partial(nn.LayerNorm, eps=1e-6),
)  # fmt: skip


def ac_predictor(grid=(SIDE // PATCH, SIDE // PATCH)):
    size = (grid[0] * PATCH, grid[1] * PATCH)
    sizes = COMMON | dict(predictor_embed_dim=AC_DIM, action_embed_dim=ACTION)
    return VisionTransformerPredictorAC(size, num_frames=AC_FRAMES, **sizes).eval()


def fill(model, salt, faint_names=()):
    weights = faint(draw_weights(shapes(model), salt), faint_names)
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    return model


def run_ac(model, name, grid, frames):
    z = draw(f"{name}/z", (1, frames * grid[0] * grid[1], D)).double()
    actions = draw(f"{name}/actions", (1, frames, ACTION)).double()
    states = draw(f"{name}/states", (1, frames, STATE)).double()
    return model(z, actions, states)


@torch.no_grad()
def main():
    torch.set_default_dtype(torch.float64)
    encoder = VisionTransformer(SIDE, num_frames=FRAMES, **COMMON).eval()
    masked = VisionTransformerPredictor(
        SIDE, num_frames=FRAMES, predictor_embed_dim=D, use_mask_tokens=True, num_mask_tokens=3,
        **COMMON,
    ).eval()  # fmt: skip
    save("vjepa2.npz", *run_masked(encoder, masked))
    save("vjepa2_ac.npz", *run_all_ac())


def run_masked(encoder, masked):
    layouts = {
        "encoder": shapes(fill(encoder, "encoder")),
        "masked": shapes(fill(masked, "masked")),
    }
    arrays = {}
    for name, shape in CLIPS.items():
        arrays[name] = encoder(draw(name, shape).transpose(1, 2).double())
    ids = torch.tensor(KEPT), torch.tensor(TARGETS)
    clips = draw("native", CLIPS["native"]).transpose(1, 2).double()
    arrays["kept"] = encoder(clips, ids[0])
    for index in MASK_INDICES:
        arrays[f"token {index}"] = masked(arrays["kept"], *ids, mask_index=index)
    fill(masked, "masked", FAINT_NAMES)
    arrays["faint"] = masked(arrays["kept"], *ids)
    return layouts, arrays


def run_all_ac():
    arrays = {}
    for name, (rows, columns, frames) in AC_CASES.items():
        model = fill(ac_predictor((rows, columns)), "ac")
        arrays[name] = run_ac(model, name, (rows, columns), frames)
    model = fill(ac_predictor(), "ac", FAINT_NAMES)
    arrays["faint"] = run_ac(model, "faint", (SIDE // PATCH, SIDE // PATCH), 2)
    return {"ac": shapes(model)}, arrays


if __name__ == "__main__":
    main()
