"""The cases of golden/vjepa2.npz and vjepa2_ac.npz: what is encoded and predicted."""

import math

import torch

from jepa_wm.models.rope import grid_positions

D, PATCH, SIDE, FRAMES = 40, 4, 16, 12  # heads of 20: segments of 6, an odd half, two lanes free
GRID = SIDE // PATCH
CLIPS = {  # name -> [B,T,C,h,w]
    "native": (2, 4, 3, SIDE, SIDE),
    "small and longer": (1, 16, 3, 8, 8),
    "odd frames": (1, 3, 3, SIDE, SIDE),
    "wide": (1, 4, 3, 12, 20),
    "tall and larger": (1, 2, 3, 28, 18),
}
KEPT = [[3, 30, 17, 8, 5], [0, 9, 31, 2, 16]]  # patches of the native clips that are encoded alone
TARGETS = [[40, 1, 31, 66], [12, 7, 95, 33]]  # unordered, beyond the clip of 32
MASK_INDICES = (0, 1, 5)  # of three tokens, the last is 5 as well

# V-JEPA 2-AC: heads of 22 in its predictor
AC_DIM, AC_FRAMES, ACTION, STATE = 44, 8, 5, 5
AC_CASES = {  # name -> (rows, columns of patches, frames)
    "one frame": (4, 4, 1),
    "two frames": (4, 4, 2),
    "three frames": (4, 4, 3),
    "four frames": (4, 4, 4),
    "wide": (3, 5, 2),
    "tall": (6, 2, 3),
}

FAINT_NAMES = ("predictor_embed", "mask_tokens", "action_encoder", "state_encoder")


def faint(weights, names=FAINT_NAMES):
    """Shrink a predictor's input layers, so that the epsilon of its first norm counts."""
    return {n: t * 0.01 if any(n.startswith(f) for f in names) else t for n, t in weights.items()}


def views(layout):
    """Tensors of these shapes, all of them views of the same zeros."""
    zeros = torch.zeros(max(math.prod(shape) for shape in layout.values()))
    return {n: zeros[: math.prod(shape)].view(shape) for n, shape in layout.items()}


def scaled(layout, width, depth, ffn, blocks="blocks", from_width=D):
    """The layout of a golden model (MLPs of 1.5 times its width, two blocks) at another size."""
    sizes = {from_width: width, 3 * from_width: 3 * width, 3 * from_width // 2: ffn, PATCH: 16}
    grown = {}
    for name, shape in layout.items():
        found = [sizes.get(size, size) for size in shape]
        for i in range(depth) if name.startswith(f"{blocks}.0.") else (None,):
            if not name.startswith(f"{blocks}.1."):
                grown[name if i is None else name.replace(".0.", f".{i}.", 1)] = found
    return grown


def on_trained_grid(ids, grid, ref_grid=None):
    """Decode ids as transformers does, whatever the grid of the clip is."""
    return grid_positions(ids, (GRID, GRID), ref_grid)
