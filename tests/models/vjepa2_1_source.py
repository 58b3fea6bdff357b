"""Checkpoints of the models in golden/vjepa2_1.npz, converted, loaded and asked."""

from functools import cache

import torch
from drawn import draw, draw_weights, read
from vjepa2_1_cases import CLIPS, CONTEXT, PREDICTIONS, TARGETS, D

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert, parse_settings

AS_IT_IS = Reading()
CPU = torch.device("cpu")
RELATIVE = 1e-5
LAYOUTS, ARRAYS = read("vjepa2_1.npz")
RECIPE = [
    "pre.mean=0.5,0.5,0.5", "pre.std=0.5,0.5,0.5", "pre.resize_short=73", "pre.crop=64",
    "pre.resample=bilinear", "pre.resize_mode=shortest_edge",
]  # fmt: skip
HEADS = ["enc.n_head=2", "pred.n_head=2"]
CLIP = ["enc.img_size=64", "enc.n_frames=4"]


@cache
def weights(name):
    return draw_weights(LAYOUTS[name], name)


def wrapped(tensors, prefix):
    return {prefix + name: tensor for name, tensor in tensors.items()}


def checkpoint(encoder="encoder", predictor="one", entry="ema_encoder"):
    """The authors' file: the encoder to use beside a student, and what training left behind."""
    student = {name: tensor + 1 for name, tensor in weights(encoder).items()}
    return {
        "encoder": wrapped(student, "module.backbone."),
        entry: wrapped(weights(encoder), "module.backbone."),
        "predictor": wrapped(weights(predictor), "module."),
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 3, "loss": 0.5, "batch_size": 8, "world_size": 2, "lr": 1e-4, "scaler": None,
    }  # fmt: skip


def converter(new_folder):
    """Return a function that saves a checkpoint and converts it; its settings win over ours."""

    def run(source, *settings, reading=AS_IT_IS):
        path = new_folder("vjepa2_1") / "checkpoint.pt"
        torch.save(source, path)
        given = parse_settings([*RECIPE, *HEADS, *CLIP, *settings])
        convert("vjepa2_1", path, path.with_suffix(".gguf"), "f32", given, reading)
        return Bundle.open(path.with_suffix(".gguf"))

    return run


def encode(model, case, **options):
    return model.encode(draw(case, CLIPS[case][1]), **options)


def predict(model, case, kind=None, index=None):
    which, of, token = PREDICTIONS[case]
    seen = draw(case, (1, len(CONTEXT), (1 if which == "one" else 4) * D))
    ids = torch.tensor(CONTEXT), torch.tensor(TARGETS[of])
    token = token if index is None else index
    return model.pred(seen, *ids, mask_index=token, is_image=(kind or of) == "image")
