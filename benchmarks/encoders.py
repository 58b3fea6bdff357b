"""Time encoders against transformers: same weights, same dtype, same process, alternating.

Run: ``python benchmarks/encoders.py [--threads 2] [--rounds 5] [--quick]``. Each case is a random
transformers model in a published shape (fewer layers where said), saved, converted with
``jepa_wm.convert`` and loaded here; transformers runs it with scaled-dot-product attention. A table
for people; the last line is one JSON object.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import alternate, machine, positive, settle_dtypes, speedup, summary
from torch import Tensor, nn

from jepa_wm.convert import convert
from jepa_wm.models import load
from jepa_wm.runtime import DTYPES, command

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One encoder to time.

    Attributes:
        family: Bundle family.
        model: Model class in transformers.
        config: Config class in transformers.
        sizes: Arguments of the config.
        input: Shape of the pixels.
        given: Bundle keys the source does not state.
    """

    family: str
    model: str
    config: str
    sizes: dict[str, Any]
    input: tuple[int, ...]
    given: dict[str, Any]


IMAGENET = {
    "jepa.pre.mean": (0.485, 0.456, 0.406),
    "jepa.pre.std": (0.229, 0.224, 0.225),
    "jepa.pre.resample": "bilinear",
    "jepa.pre.resize_mode": "shortest_edge",
}


def _vit(width: int, layers: int, heads: int, patch: int, image: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "patch_size": patch,
        "image_size": image,
    }


def _pre(size: int) -> dict[str, Any]:
    return IMAGENET | {"jepa.pre.resize_short": size, "jepa.pre.crop": size}


CASES = {
    "vjepa2 ViT-L, 4 layers, 2,048 tokens": Case(
        "vjepa2",
        "VJEPA2Model",
        "VJEPA2Config",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "mlp_ratio": 4,
            "crop_size": 256,
            "frames_per_clip": 16,
        },
        (1, 16, 3, 256, 256),
        _pre(256),
    ),
    "ijepa ViT-H, 4 layers, 4 x 256 tokens": Case(
        "ijepa",
        "IJepaModel",
        "IJepaConfig",
        _vit(1280, 4, 16, 14, 224),
        (4, 3, 224, 224),
        _pre(224),
    ),
    "hfvit ViT-S, 12 layers, 8 x 197 tokens": Case(
        "hfvit",
        "ViTModel",
        "ViTConfig",
        _vit(384, 12, 6, 16, 224),
        (8, 3, 224, 224),
        _pre(224),
    ),
}
TINY = Case("hfvit", "ViTModel", "ViTConfig", _vit(32, 2, 2, 8, 16), (2, 3, 16, 16), _pre(16))


def build_peer(case: Case) -> nn.Module:
    """Build the transformers model with every parameter random.

    Raises:
        ImportError: transformers is not installed.
    """
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, case.config)(**case.sizes, attn_implementation="sdpa")
    model = getattr(transformers, case.model)(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        spread = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        is_norm = "norm" in name and name.endswith("weight")
        parameter.normal_(1.0 if is_norm else 0.0, spread)
    return model


def run_peer(model: nn.Module, pixels: Tensor, family: str) -> Tensor:
    """Return the peer's encoder tokens; a VJEPA2Model leaves its predictor out."""
    extra = {"skip_predictor": True} if family == "vjepa2" else {}
    return model(pixels, **extra).last_hidden_state


def time_case(case: Case, dtypes: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Time both on random pixels: dtype -> medians, ratio and relative difference."""
    peer = build_peer(case)
    source, path = folder / "source", folder / "bundle.gguf"
    peer.save_pretrained(source)
    convert(case.family, source, path, "f32", case.given)
    pixels = torch.randn(case.input, generator=torch.Generator().manual_seed(1))
    found = {}
    for name in dtypes:
        peer = peer.to(DTYPES[name])
        ours = load(path, CPU, DTYPES[name])
        runs: list[Callable[[], Tensor]] = [
            partial(ours.encode, pixels),
            partial(run_peer, peer, pixels.to(DTYPES[name]), case.family),
        ]
        with torch.inference_mode():
            timings = alternate([lambda _, run=run: run() for run in runs], rounds)
        mine, theirs = (result.float() for result in timings.results[-1])
        found[name] = {
            "ours": summary(timings, 0),
            "transformers": summary(timings, 1),
            "ratio": speedup(timings, 0, 1),
            "relative_difference": float((mine - theirs).abs().max() / theirs.abs().max()),
        }
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"))
    parser.add_argument("--quick", action="store_true", help="one tiny case: does it run?")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    about = machine(args.threads, "transformers")
    print(f"{about['cpu']} ({', '.join(about['flags'])}), {args.threads} threads")
    dtypes = settle_dtypes(args.dtypes, args.quick)
    print(f"{'':<40}{'dtype':>10}{'ours s':>8}{'HF s':>8}{'ratio':>7}{'by cpu':>7}{'diff':>9}")
    results = {}
    for title, case in ({"tiny": TINY} if args.quick else CASES).items():
        with tempfile.TemporaryDirectory() as folder:
            results[title] = time_case(case, dtypes, args.rounds, Path(folder))
        for dtype, row in results[title].items():
            print(
                f"{title:<40}{dtype:>10}{row['ours']['median']:>8.3f}"
                f"{row['transformers']['median']:>8.3f}{row['ratio']['median']:>7.2f}"
                f"{row['ratio']['cpu']:>7.2f}{row['relative_difference']:>9.1e}",
                flush=True,
            )
    document = {"machine": about, "rounds": args.rounds, "encoders": results}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
