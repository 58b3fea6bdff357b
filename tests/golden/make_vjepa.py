"""Make vjepa.npz: a tiny random V-JEPA, encoder and predictor, run by its authors' code.

Needs a checkout of facebookresearch/jepa on PYTHONPATH. ``python tests/golden/make_vjepa.py``
rewrites the file; weights are rounded to float16 and are part of it. What enters the first block
is faint, of the size of sqrt(eps), so that another epsilon is an error of order one.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from src.models.predictor import VisionTransformerPredictor
from src.models.utils.multimask import MultiMaskWrapper, PredictorMultiMaskWrapper
from src.models.vision_transformer import VisionTransformer

D, PRED, GRID, PATCH, FRAMES, TUBELET, HEADS = 16, 12, 3, 2, 6, 2, 2
FAINT = ("patch_embed", "pos_embed", "mask_token", "predictor_embed")
CLIPS = {  # frames, height, width in pixels
    "native": (6, 6, 6),
    "shorter": (2, 6, 6),
    "longer": (10, 6, 6),
    "wide": (6, 4, 10),
    "tall_odd": (5, 9, 4),  # the last frame and the last row of pixels fill no patch
}


def build(generator):
    norm = partial(torch.nn.LayerNorm, eps=1e-6)
    sizes = dict(
        img_size=GRID * PATCH, patch_size=PATCH, num_frames=FRAMES, tubelet_size=TUBELET,
        embed_dim=D, depth=2, num_heads=HEADS, mlp_ratio=2, qkv_bias=True, norm_layer=norm,
        uniform_power=True,
    )  # fmt: skip
    encoder = VisionTransformer(**sizes)
    predictor = VisionTransformerPredictor(
        predictor_embed_dim=PRED, use_mask_tokens=True, num_mask_tokens=2, **sizes
    )
    weights = {}
    for part, model in (("encoder", encoder), ("predictor", predictor)):
        for name, tensor in model.eval().state_dict().items():
            tensor.copy_(draw(name, tensor.shape, generator))
            weights[f"{part}.{name}"] = tensor
    return encoder, predictor, weights


def draw(name, shape, generator):
    values = torch.randn(shape, generator=generator)
    if any(word in name for word in FAINT):
        return (values * 1e-3).half()
    scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.3
    one = 1 if len(shape) == 1 and name.endswith("weight") else 0
    return (values * scale + one).half()


def pack(weights):
    """One array for all weights: an archive member costs a quarter of a kilobyte."""
    return {
        "layout": np.array(json.dumps({name: list(t.shape) for name, t in weights.items()})),
        "weights": torch.cat([t.flatten() for t in weights.values()]).half().numpy(),
    }


def ids(size, generator):
    """Ids for two clips, in no order."""
    count = FRAMES // TUBELET * GRID * GRID
    rows = [torch.randperm(count, generator=generator)[:size] for _ in range(2)]
    return torch.stack(rows)


@torch.no_grad()
def main():
    generator = torch.Generator().manual_seed(0)
    encoder, predictor, weights = build(generator)
    arrays = pack(weights)
    for name, size in CLIPS.items():
        pixels = (
            torch.randn(2 if name == "native" else 1, 3, *size, generator=generator).half().float()
        )
        arrays[f"{name}/pixels"] = pixels.transpose(1, 2).half()  # frames lead
        arrays[f"{name}/tokens"] = encoder(pixels)
        if name == "native":
            native = pixels
    # two mask configurations, as in training
    contexts, targets = ([ids(n, generator) for n in sizes] for sizes in ((11, 6), (8, 5)))
    z = MultiMaskWrapper(encoder)(native, contexts)
    wanted = [encoder(native)] * 2  # the latents to predict: read by diffusion only
    predicted = PredictorMultiMaskWrapper(predictor)(z, wanted, contexts, targets)
    for i in range(2):
        arrays |= {
            f"pair{i}/context_ids": contexts[i].byte(),
            f"pair{i}/target_ids": targets[i].byte(),
            f"pair{i}/z": z[i],
            f"pair{i}/predicted": predicted[i],
        }
    # the predictor's own default mask token
    arrays["alone/predicted"] = predictor(z[0], wanted[0], contexts[0], targets[0])
    path = Path(__file__).with_name("vjepa.npz")
    np.savez_compressed(path, **{n: np.asarray(a) for n, a in arrays.items()})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
