"""What a rollout run leaves behind: figures as .pdf and .png, numbers, one page about them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from jepa_wm.experiments.observer import Observer
from jepa_wm.experiments.readings import LinearProbe
from jepa_wm.experiments.rollout_numbers import STATIC, quartiles, record
from jepa_wm.experiments.rollout_study import Outline, Study
from jepa_wm.experiments.rollouts import DISTANCES, fit_plane
from jepa_wm.models.maps import cls_attention
from jepa_wm.runtime import versions
from jepa_wm.viz.embeddings import Fan, fans, latent_plane
from jepa_wm.viz.imagined import Maps, Row, overlays, patch_maps, strip
from jepa_wm.viz.style import BLUE, INK, ORANGE

TITLES = {
    "filmstrip": "True frames, and the real frames nearest to what is predicted",
    "distances": "How far the prediction is from the truth",
    "plane": "Both paths through latent space",
    "readings": "How well a linear probe reads the state, encoded and predicted",
    "overlay": "Where the latents say that things are",
    "similarity": "Which patches are predicted right",
    "attention": "Where the encoder looks",
}


def figures(study: Study, observer: Observer) -> dict[str, Figure]:
    """Draw a study; names are those of the files."""
    imagined, row = study.imagined, study.options["show"]
    found = {"filmstrip": _filmstrip(study), "distances": _distances(study)}
    centre, axes, shares = fit_plane(study.bank.z)
    encoded, predicted = ((z[row] - centre) @ axes.T for z in imagined.flat())
    found["plane"] = latent_plane(
        (study.bank.z - centre) @ axes.T,
        {"encoded": encoded, "predicted": predicted},
        imagined.steps,
        shares,
    )
    if study.probe is not None:
        found["readings"] = _readings(study)
        if study.outline is not None:
            found["overlay"] = _overlay(study, study.probe, study.outline)
    return found | _maps(study, observer)


def document(study: Study) -> dict[str, Any]:
    """Return a study as plain JSON values."""
    decoder = None
    if study.painter is not None:
        decoder = {"origin": study.painter.origin} | {
            f"psnr_{name}": quartiles(values) for name, values in _psnr(study).items()
        }
    return {
        "model": study.about,
        "pixels": study.pixels,
        "steps": study.imagined.steps.tolist(),
        "rollouts": len(study.imagined.states),
        "bank": len(study.bank.z),
        **record(study.numbers, study.probe, study.bank),
        "decoder": decoder,
        "options": study.options,
        "versions": versions(),
    }


def lines(study: Study) -> list[str]:
    """Return what is worth saying of a study, a line each."""
    numbers, last = study.numbers, int(study.imagined.steps[-1])
    first = int(study.imagined.steps[1])
    said = {**study.said, "pixels": study.pixels}
    middle = {name: np.median(values, 0) for name, values in numbers.distances.items()}
    for at, step in ((1, first), (-1, last)):
        said[f"step {step}"] = (
            f"distance to the truth {middle['predicted'][at]:.3g}, nothing predicted "
            f"{middle[STATIC][at]:.3g}, random pair {numbers.random_pair:.3g} (medians); "
            f"{np.median(numbers.nearer[:, at]):.0f} of {len(study.bank.z)} real frames are nearer "
            "than the true one"
        )
    if study.probe is not None:
        r2 = ", ".join(f"{label} {value:.3f}" for label, value in study.probe.r2.items())
        said["probe"] = f"R2 on held-out frames: {r2}"
        said["reads"] = f"after {last} steps, encoded and predicted: " + ", ".join(
            f"{one.label} {np.median(found['encoded'][:, -1]):.2g} and "
            f"{np.median(found['predicted'][:, -1]):.2g} {one.unit}"
            for one, found in zip(study.probe.readings, numbers.errors.values(), strict=True)
        )
    if study.painter is not None:
        found = {name: float(np.median(values[:, -1])) for name, values in _psnr(study).items()}
        said["decoder"] = (
            f"{study.painter.origin}; PSNR after {last} steps: encoded {found['encoded']:.1f} dB, "
            f"predicted {found['predicted']:.1f} dB"
        )
    return [f"{name:<9} {text}" for name, text in said.items()]


def write(study: Study, drawn: Mapping[str, Figure], folder: Path) -> None:
    """Write figures, ``rollout.json`` and ``summary.md`` into a folder."""
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.pdf")
        figure.savefig(folder / f"{name}.png")
    text = json.dumps(_finite(document(study)), indent=1, default=str)
    (folder / "rollout.json").write_text(text + "\n")
    page = ["# What the model imagines", "", *(f"* {line}" for line in lines(study)), ""]
    for name in drawn:
        page += [f"## {TITLES[name]}", "", f"![{name}]({name}.png)", ""]
    (folder / "summary.md").write_text("\n".join(page))


def _filmstrip(study: Study) -> Figure:
    row, moments, bank = study.options["show"], study.moments, study.bank
    imagined, nearest = study.imagined, study.numbers.nearest
    rows = [Row(label="true frame", pictures=imagined.frames[row, moments], colour=INK)]
    for rank in range(nearest.rows.shape[1]):
        away = nearest.distances[moments, rank]
        label = "nearest real\nframe to the\nprediction" if not rank else f"{rank + 1}. nearest"
        pictures = bank.frames[nearest.rows[moments, rank]]
        captions = [f"d = {value:.2g}" for value in away]
        rows.append(Row(label=label, pictures=pictures, captions=captions, colour=ORANGE))
    if study.painter is not None:
        rows += [
            Row(label=f"{name}\nlatent,\ndecoded", pictures=study.painter.draw(z[row, moments]),
                colour=colour)
            for name, z, colour in (("encoded", imagined.encoded, BLUE),
                                    ("predicted", imagined.predicted, ORANGE))
        ]  # fmt: skip
    scale = study.numbers.random_pair
    note = (
        f"d: {DISTANCES[study.options['distance']][0]} of latents; of a random pair {scale:.2g}. "
    )
    return strip(rows, study.heads, note + study.pixels)


def _distances(study: Study) -> Figure:
    unit = f"{DISTANCES[study.options['distance']][0]}\n(latent units)"
    scale = (study.numbers.random_pair, "random pair")
    panel = Fan(
        title="Distance to the encoded truth",
        unit=unit,
        curves=study.numbers.distances,
        scale=None if math.isnan(scale[0]) else scale,
    )
    return fans([panel], study.imagined.steps, f"Median and quartiles of {_count(study)}.")


def _readings(study: Study) -> Figure:
    assert study.probe is not None  # the caller's case
    panels = [
        Fan(
            title=f"{one.label} (R2 {study.probe.r2[one.label]:.2f})",
            unit=f"error of the reading ({one.unit})",
            curves=study.numbers.errors[one.label],
        )
        for one in study.probe.readings
    ]
    note = f"Median and quartiles of {_count(study)}; R2 on held-out real frames."
    return fans(panels, study.imagined.steps, note)


def _count(study: Study) -> str:
    count = len(study.imagined.states)
    return f"{count} rollouts" if count > 1 else "one rollout"


def _overlay(study: Study, probe: LinearProbe, outline: Outline) -> Figure:
    row, moments = study.options["show"], study.moments
    encoded, predicted = (probe.read(z[row, moments]) for z in study.imagined.flat())
    states = {"true": study.imagined.states[row, moments], "encoded": encoded,
              "predicted": predicted}  # fmt: skip
    outlines = {name: [outline(state) for state in found] for name, found in states.items()}
    r2 = ", ".join(f"{label} {value:.2f}" for label, value in probe.r2.items())
    note = f"Linear probe fitted on real frames of other episodes; R2 on held-out ones: {r2}."
    return overlays(study.imagined.frames[row, moments], outlines, study.heads, note)


def _maps(study: Study, observer: Observer) -> dict[str, Figure]:
    """Draw numbers a patch: token similarity, and CLS attention where the encoder has a CLS."""
    model = getattr(observer.model, "model", None)  # what a bundle's world models are made of
    if model is None or not observer.is_camera:
        return {}
    row, moments = study.options["show"], study.moments
    frames = torch.from_numpy(study.imagined.frames[row, moments]).to(observer.device)
    pixels = model.preprocess(frames)
    seen = model.preprocess.picture(pixels).cpu().numpy()
    encoded, predicted = (z[row] for z in (study.imagined.encoded, study.imagined.predicted))
    if encoded.ndim == 3:  # [n,N,D]
        side = math.isqrt(encoded.shape[1])
        still = np.broadcast_to(encoded[:1], encoded.shape)
        rows = [
            Maps(label=label, values=_cosine(z[moments], encoded[moments]).reshape(-1, side, side))
            for label, z in (
                ("predicted\ntokens", predicted),
                ("tokens of the\nstart frame", still),
            )
        ]
        measure, note = "cosine to the encoded token (1)", "Above: prediction. Below: none at all."
        return {"similarity": patch_maps(seen, rows, study.heads, measure, note)}
    if model.enc.config.cls_token and not model.enc.config.takes_clips:
        weights = cls_attention(model, pixels).mean(1).cpu().numpy()
        rows = [Maps(label="attention\nof CLS", values=weights)]
        measure = "attention (share)"
        note = "Last block of the encoder, mean over heads; frames as the model sees them."
        return {"attention": patch_maps(seen, rows, study.heads, measure, note)}
    return {}


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    sizes = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(sizes, 1e-12)


def _psnr(study: Study) -> dict[str, NDArray[np.float64]]:
    assert study.painter is not None  # the caller's case
    imagined = study.imagined
    return {
        name: study.painter.psnr(z, imagined.frames)
        for name, z in (("encoded", imagined.encoded), ("predicted", imagined.predicted))
    }


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
