"""Curves of a training run, drawn from its ``metrics.jsonl``."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# figures of the probes of every trainer
_ERRORS = ("error_1", "error_4", "error_5", "copy_1", "copy_4", "static_5")
_KNOWS = ("order", "rank", "top_10")  # beside every r2_<part of the state>


def read_metrics(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a metrics file by kind (``train``, ``probe``).

    A resumed run repeats the steps after its checkpoint; the later record of a step wins.
    """
    kinds: dict[str, dict[int, dict[str, Any]]] = {"train": {}, "probe": {}}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        kinds[record["kind"]][record["step"]] = record
    return {kind: [records[step] for step in sorted(records)] for kind, records in kinds.items()}


def _curve(axes: Axes, records: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Draw the named fields over the step."""
    for name in names:
        points = [(record["step"], record[name]) for record in records if name in record]
        if points:
            axes.plot(*zip(*points, strict=True), label=name.replace("_", " "))
    axes.set_xlabel("optimiser step")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)


def training_curves(path: Path) -> Figure:
    """Draw losses, held-out latent error, what probes read and latent health of a run."""
    metrics = read_metrics(path)
    figure = Figure(figsize=(11, 7), layout="constrained")
    losses, errors, knows, health = figure.subplots(2, 2).flat
    _curve(losses, metrics["train"], ("prediction", "rollout", "sigreg", "state", "pixels"))
    losses.set(title="Training losses", yscale="log", ylabel="loss (per latent column)")
    _curve(errors, metrics["probe"], _ERRORS)
    errors.set(title="Held-out latent error", yscale="log", ylabel="mean error")
    parts = dict.fromkeys(k for record in metrics["probe"] for k in record if k.startswith("r2_"))
    _curve(knows, metrics["probe"], (*parts, *_KNOWS))
    knows.set(title="What the latent tells", ylabel="R2, rank, share", ylim=(-0.1, 1.02))
    _curve(health, metrics["train"], ("std_min", "std", "rank"))
    health.set(title="Latent health", ylabel="std, effective rank")
    return figure
