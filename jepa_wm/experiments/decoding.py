"""A decoder for an experiment's model: read from a file, or trained on play made on the spot."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.observer import Observer
from jepa_wm.experiments.setup import Brain
from jepa_wm.launch import build
from jepa_wm.training.decoder import (
    Decoder,
    DecoderRun,
    DecoderSizes,
    DecoderTrainer,
    Pairs,
    psnr,
)
from jepa_wm.training.decoder_file import load_decoder, save_decoder
from jepa_wm.training.pictures import shrink

PLAY_SEED = 50_000  # of decoders' play: neither the collections' nor the evaluation's
_EACH = 25  # frames of an episode
_ROWS = 64  # frames encoded at once


@dataclass(frozen=True, eq=False)
class Painter:
    """A decoder and where it is from.

    Attributes:
        network: Draws.
        origin: A file, or how it was trained.
    """

    network: Decoder
    origin: str

    def draw(self, z: NDArray[Any]) -> NDArray[np.uint8]:
        """Draw latents [n,*L] as uint8 [n,s,s,3]."""
        return self.network.pictures(torch.from_numpy(z)).numpy()

    def psnr(self, z: NDArray[Any], frames: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return how near drawn latents [B,n,*L] are to frames uint8 [B,n,h,w,3], dB [B,n]."""
        lead, size = frames.shape[:2], self.network.sizes.image_size
        drawn = self.draw(z.reshape(-1, *z.shape[2:]))
        true = shrink(frames.reshape(-1, *frames.shape[2:]), size)
        return psnr(torch.from_numpy(drawn), torch.from_numpy(true)).reshape(lead).numpy()


def make_painter(options: dict[str, Any], brain: Brain, observer: Observer) -> Painter | None:
    """Return the decoder of ``decoder``, or the one ``train=decoder`` asks for, or None.

    Raises:
        ConfigError: the file is no decoder, or not this model's.
    """
    if options["decoder"] is not None:
        return _read(Path(str(options["decoder"])).expanduser(), brain, observer.device)
    if options["train"] is None:
        return None
    run = decoder_run(options["recipe"] | {"seed": options["seed"]})
    pairs = _collect(options, observer, run)
    with tempfile.TemporaryDirectory(prefix="jepa_wm-decoder-") as folder:
        trainer = DecoderTrainer(run, pairs, None, Path(folder), observer.device)
        trainer.run()
    return Painter(trainer.network.eval(), f"trained for {run.steps} steps on play of this run")


def decoder_run(values: dict[str, Any]) -> DecoderRun:
    """Turn the plain values of ``conf/recipe/decoder.yaml`` into a checked run.

    Raises:
        ConfigError: a value does not fit.
    """
    names = {*DecoderRun.__dataclass_fields__}
    plain = {key: value for key, value in values.items() if key in names}
    try:
        sizes = DecoderSizes(**plain.pop("network"))
        return DecoderRun(**plain | {"betas": tuple(plain["betas"])}, network=sizes)
    except (TypeError, KeyError) as error:
        raise ConfigError(f"recipe: options do not fit: {error}") from error


def keep_painter(painter: Painter, brain: Brain, path: Path) -> Path:
    """Write a trained decoder beside the results."""
    about = {"model": brain.about["name"], "model_sha256": brain.about.get("sha256")}
    return save_decoder(painter.network, path, about | {"origin": painter.origin})


def _read(path: Path, brain: Brain, device: torch.device) -> Painter:
    network, about = load_decoder(path, device)
    mine, theirs = brain.about.get("sha256"), about.get("model_sha256")
    if theirs != mine:
        raise ConfigError(
            f"decoder={path} belongs to another model ({about.get('model')}, sha256 "
            f"{str(theirs)[:12]}), not to {brain.about['name']} ({str(mine)[:12]}); train one with "
            "train=decoder"
        )
    return Painter(network, str(path))


def _collect(options: dict[str, Any], observer: Observer, run: DecoderRun) -> Pairs:
    """Record play and encode what the model sees of it."""
    play = build(options["task"]["play"], "task.play")
    recorded = play(PLAY_SEED + options["seed"], -(-run.frames // _EACH))
    times = np.unique(np.linspace(0, recorded.actions.shape[1], _EACH).round().astype(int))
    states = recorded.states[:, times].reshape(-1, recorded.states.shape[-1])
    latents, pictures = [], []
    pieces = np.array_split(states, -(-len(states) // _ROWS))
    for part in tqdm(pieces, desc="play", unit="batch", file=sys.stderr, leave=False):
        frames = observer.frames(part)
        latents.append(observer.encode_batch(observer.inputs(part, frames)))
        pictures.append(shrink(frames, run.network.image_size))
    z = torch.from_numpy(np.concatenate(latents)).float()
    return Pairs(z, torch.from_numpy(np.concatenate(pictures)))
