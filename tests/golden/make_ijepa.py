"""Make ijepa.npz: a tiny random I-JEPA, encoder and predictor, run by its authors' code.

Needs a checkout of facebookresearch/ijepa on PYTHONPATH. ``python tests/golden/make_ijepa.py``
rewrites the file; weights are rounded to float16 and are part of it. What enters the first block
is faint, of the size of sqrt(eps), so that another epsilon is an error of order one.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from src.models.vision_transformer import VisionTransformer, VisionTransformerPredictor

D, PRED, GRID, PATCH, HEADS = 16, 12, 4, 4, 2
FAINT = ("patch_embed", "pos_embed", "mask_token", "predictor_embed")
BLOCKS = {  # masks of the contexts and of the targets, one row an image
    "one_one": (1, 1, 9, 4),
    "one_four": (1, 4, 8, 3),
    "two_three": (2, 3, 7, 2),
}


def build(generator):
    norm = partial(torch.nn.LayerNorm, eps=1e-6)
    sizes = dict(num_heads=HEADS, mlp_ratio=2, qkv_bias=True, norm_layer=norm)
    encoder = VisionTransformer(
        img_size=[GRID * PATCH], patch_size=PATCH, embed_dim=D, depth=2, **sizes
    )
    predictor = VisionTransformerPredictor(
        num_patches=GRID * GRID, embed_dim=D, predictor_embed_dim=PRED, depth=2, **sizes
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


def masks(count, size, generator):
    """Ids of ``count`` blocks for two images, in no order."""
    order = [torch.randperm(GRID * GRID, generator=generator)[:size] for _ in range(2 * count)]
    return list(torch.stack(order).reshape(count, 2, size))


@torch.no_grad()
def main():
    generator = torch.Generator().manual_seed(0)
    encoder, predictor, weights = build(generator)
    arrays = pack(weights)
    pixels = torch.randn(2, 3, GRID * PATCH, GRID * PATCH, generator=generator).half().float()
    arrays |= {"all/pixels": pixels.half(), "all/tokens": encoder(pixels)}
    for name, (n_context, n_target, seen, hidden) in BLOCKS.items():
        contexts, targets = masks(n_context, seen, generator), masks(n_target, hidden, generator)
        z = encoder(pixels, contexts)
        arrays |= {
            f"{name}/contexts": torch.stack(contexts).byte(),
            f"{name}/targets": torch.stack(targets).byte(),
            f"{name}/z": z.clone(),
            f"{name}/predicted": predictor(z, contexts, targets),
        }
    path = Path(__file__).with_name("ijepa.npz")
    np.savez_compressed(path, **{n: np.asarray(a) for n, a in arrays.items()})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
