"""Make hfvit.npz: a tiny random ViTv2 (LayerScale, registers) run by its authors' code.

Needs a checkout of Open-Knowledge-AI/lite_ssl on PYTHONPATH. ``python tests/golden/make_hfvit.py``
rewrites the file; weights are rounded to float16 and are part of it.
"""

import json
from pathlib import Path

import numpy as np
import torch
from lite_ssl.model.image.vitv2.transformer import ViTv2


def pack(weights):
    """One array for all weights: an archive member costs a quarter of a kilobyte."""
    return {
        "layout": np.array(json.dumps({name: list(t.shape) for name, t in weights.items()})),
        "weights": torch.cat([t.flatten() for t in weights.values()]).half().numpy(),
    }


@torch.no_grad()
def main():
    model = ViTv2(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2, init_values=0.1,
        num_register_tokens=3,
    ).eval()  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        values = torch.randn(tensor.shape, generator=generator)
        scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
        values = values * scale + (1 if tensor.ndim == 1 and name.endswith("weight") else 0)
        tensor.copy_(values.half())
    arrays = pack(model.state_dict())
    sizes = {"native": (16, 16), "same_count": (8, 32), "up": (24, 20), "down": (12, 8)}
    for name, size in sizes.items():
        pixels = torch.randn(2, 3, *size, generator=generator)
        tokens = model.norm(_blocks(model, pixels))
        arrays |= {f"{name}/pixels": pixels.numpy(), f"{name}/tokens": tokens.numpy()}
    path = Path(__file__).with_name("hfvit.npz")
    np.savez_compressed(path, **arrays)
    print(path, path.stat().st_size, "bytes")


def _blocks(model, pixels):
    x = model.prepare_tokens_with_masks(pixels)
    for block in model.blocks:
        x = block(x)
    return x


if __name__ == "__main__":
    main()
