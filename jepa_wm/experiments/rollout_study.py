"""A rollout run from paths to numbers: what the command draws, and a notebook may."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.experiments.decoding import Painter, make_painter
from jepa_wm.experiments.observer import Observer
from jepa_wm.experiments.paths import make_paths, record_play
from jepa_wm.experiments.readings import LinearProbe, fit_probe, make_readings
from jepa_wm.experiments.rollout_numbers import Numbers, measure
from jepa_wm.experiments.rollouts import Bank, Imagined, bank_episodes, imagine, make_bank
from jepa_wm.experiments.setup import Brain
from jepa_wm.launch import build
from jepa_wm.viz.imagined import shown
from jepa_wm.viz.rollouts import NO_DECODER_NOTE

Outline = Callable[[NDArray[np.float64]], Mapping[str, NDArray[np.float64]]]

HOW_TO_DECODE = "train=decoder trains a small one"
PAINTED_NOTE = (
    "Decoded pixels are the decoder's, not the model's: it was trained afterwards on real frames."
)
_PLAIN = {"play": "recorded play", "plan": "the planner's plan from each start",
          "zero": "zero actions", "random": "random actions"}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """A finished rollout run.

    Attributes:
        options: Plain options of the run.
        about: What is known of the model.
        said: How it was done: name -> words.
        imagined: The rollouts.
        bank: Real frames beside them.
        numbers: What was measured.
        probe: Reads the state, or None where the task has none.
        outline: State -> outlines, or None where nobody knows where things are in a frame.
        painter: A decoder, or None.
    """

    options: dict[str, Any]
    about: dict[str, Any]
    said: dict[str, str]
    imagined: Imagined
    bank: Bank
    numbers: Numbers
    probe: LinearProbe | None
    outline: Outline | None
    painter: Painter | None

    @property
    def pixels(self) -> str:
        """What is to be said of imagined pixels."""
        if self.painter is None:
            return f"{NO_DECODER_NOTE} ({HOW_TO_DECODE})"
        return PAINTED_NOTE

    @property
    def moments(self) -> list[int]:
        """The moments that are drawn."""
        return shown(len(self.imagined.steps), self.options["columns"])

    @property
    def heads(self) -> list[str]:
        """What stands over them."""
        return [f"step {self.imagined.steps[at]}" for at in self.moments]


def make_probe(options: dict[str, Any], bank: Bank) -> LinearProbe | None:
    """Fit what the probe's YAML reads; without one, the positions and angles the task names."""
    node = options.get("probe")
    if node is not None:
        reads = node["reads"]
    else:
        reads = [
            {"label": one["name"], "at": one["at"], "unit": "state's unit",
             "turns": int(bool(one.get("wraps")))}
            for one in options["task"].get("targets") or ()
        ]  # fmt: skip
    if not reads or len(np.unique(bank.episodes)) < 2:  # nothing to read, or to score it on
        return None
    readings = make_readings(reads, bank.states.shape[1])
    return fit_probe(bank.z, bank.states, bank.episodes, readings)


def study(options: dict[str, Any], brain: Brain, observer: Observer) -> Study:
    """Make the paths, imagine them, measure."""
    played, others = record_play(options, bank_episodes(options["bank"]))
    paths = make_paths(options, brain, observer, played)
    painter = make_painter(options, brain, observer)
    bank = make_bank(others, options["bank"], observer)
    imagined = imagine(brain.codec, observer, paths)
    probe = make_probe(options, bank)
    outline = (options.get("probe") or {}).get("outline")
    block, blocks = brain.codec.block, len(imagined.steps) - 1
    source = _PLAIN.get(options["actions"], options["actions"])
    said = {
        "model": f"{brain.about['name']} ({brain.about['family']})",
        "actions": f"{source}: {blocks} blocks of {block} env steps after {options['history']} "
        f"true frame(s), {len(imagined.states)} rollouts",
        "bank": f"{len(bank.z)} real frames of {len(set(bank.episodes.tolist()))} other episodes",
    }
    if probe is None:
        why = (
            "the bank is of one episode" if bank.episodes.max() == 0 else "nothing to read is named"
        )
        said["probe"] = f"none: {why}"
    return Study(
        options=options,
        about=brain.about,
        said=said,
        imagined=imagined,
        bank=bank,
        numbers=measure(imagined, bank, probe, options),
        probe=probe,
        outline=None if outline is None else build(outline, "probe.outline"),
        painter=painter,
    )
