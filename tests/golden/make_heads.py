"""Make heads_vjepa2.npz or heads_vjepa.npz: a tiny random attentive probe run by its authors' code,
in float64.

Needs a checkout of facebookresearch/vjepa2, or of facebookresearch/jepa, on PYTHONPATH, and its
name: ``python tests/golden/make_heads.py vjepa2`` (or ``vjepa``). Weights and tokens are drawn by
name (tests/models/drawn.py), so only outputs are kept.
"""

import sys
from pathlib import Path

import torch
from src.models.attentive_pooler import AttentiveClassifier

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from drawn import draw, draw_weights, save, shapes
from head_cases import CLASSES, PROBES, TOKENS, D


@torch.no_grad()
def main(name):
    torch.set_default_dtype(torch.float64)
    heads, depth = PROBES[name]
    probe = AttentiveClassifier(D, heads, depth=depth, num_classes=CLASSES).eval()
    layout = shapes(probe)
    probe.load_state_dict({n: tensor.double() for n, tensor in draw_weights(layout).items()})
    arrays = {}
    for case, (shape, scale) in TOKENS.items():
        tokens = draw(case, shape).double() * scale
        arrays[f"{case}/pooled"] = probe.pooler(tokens)[:, 0]
        arrays[f"{case}/logits"] = probe(tokens)
    save(f"heads_{name}.npz", layout, arrays)


if __name__ == "__main__":
    main(sys.argv[1])
