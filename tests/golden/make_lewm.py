"""Make lewm.npz: a tiny random LeWM run by its authors' code.

Needs stable-worldmodel and transformers. ``python tests/golden/make_lewm.py`` rewrites the file;
weights are rounded to float16 so that they take half the room, and are part of it.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from stable_worldmodel.wm.lewm import LeWM
from stable_worldmodel.wm.lewm.module import MLP, Embedder, Predictor
from transformers import ViTConfig, ViTModel

D, A = 12, 4


def build():
    vit = ViTConfig(
        hidden_size=D, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20,
        image_size=8, patch_size=4,
    )  # fmt: skip
    norm = partial(torch.nn.BatchNorm1d)
    predictor = Predictor(
        num_frames=3, depth=2, heads=2, mlp_dim=20, input_dim=D, hidden_dim=D, dim_head=8
    )
    model = LeWM(
        ViTModel(vit, add_pooling_layer=False),
        predictor,
        Embedder(A, smoothed_dim=6, emb_dim=D),
        MLP(D, 16, D, norm_fn=norm),
        MLP(D, 16, D, norm_fn=norm),
    ).eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            values = torch.randn(tensor.shape, generator=generator)
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            values = values * scale + (1 if tensor.ndim == 1 and name.endswith("weight") else 0)
            values = values.abs() + 0.1 if name.endswith("running_var") else values
            tensor.copy_(values.half())
    return model, generator


def pack(weights):
    """One array for all weights: an archive member costs a quarter of a kilobyte."""
    return {
        "layout": np.array(json.dumps({name: list(t.shape) for name, t in weights.items()})),
        "weights": torch.cat([t.flatten() for t in weights.values()]).half().numpy(),
    }


@torch.no_grad()
def main():
    model, generator = build()
    draw = partial(torch.randn, generator=generator)
    weights = {n: t for n, t in model.state_dict().items() if t.ndim}
    arrays = pack(weights)

    def encode(pixels):
        return model.encode({"pixels": pixels})["emb"]

    for name, size in (("native", (8, 8)), ("tall", (12, 4)), ("wide", (8, 12))):
        pixels = draw(1, 2, 3, *size).half().float()
        arrays[f"{name}/pixels"], arrays[f"{name}/z"] = pixels, encode(pixels)
    z, actions = draw(2, 3, D), draw(2, 3, A)
    arrays["predict/z"], arrays["predict/actions"] = z, actions
    for T in (1, 2, 3):
        embedded = model.action_encoder(actions[:, :T])
        arrays[f"predict/next{T}"] = model.predict(z[:, :T], embedded)
    for T in (1, 2, 3):
        past, plans = draw(2, T - 1, A), draw(2, 3, 6, A)
        info = {
            "pixels": torch.zeros(2, 3, T, 1, 1, 1),
            "emb": z[:, None, :T].expand(2, 3, T, D),
            "action_history": past[:, None].expand(2, 3, T - 1, A),
        }
        out = model.rollout(info, plans)["predicted_emb"][:, :, T:]
        arrays |= {f"rollout{T}/past": past, f"rollout{T}/plans": plans, f"rollout{T}/z": out}
    path = Path(__file__).with_name("lewm.npz")
    np.savez_compressed(path, **{n: np.asarray(a) for n, a in arrays.items()})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
