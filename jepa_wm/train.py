"""Train a small model on collected play and write it as a bundle.

Run: ``python -m jepa_wm.train data=data/play holdout=data/holdout`` for a LeWM, ``recipe=encoder``
for a V-JEPA 2 encoder and, on that, ``recipe=ac`` for an action-conditioned predictor;
``recipe=decoder model=lewm.gguf`` for pictures of a finished model's latents.
Data-parallel: ``torchrun --nproc-per-node 2 -m jepa_wm.train ...`` (gloo on CPU, nccl on CUDA).
Ctrl-C saves a checkpoint; ``resume=runs/lewm/checkpoint.pt`` continues exactly.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.errors import ConfigError
from jepa_wm.launch import launch, preset_node
from jepa_wm.models import load_world_model
from jepa_wm.models.preprocess import Preprocess
from jepa_wm.runtime import has_fast_bfloat16, resolve_device, use_threads
from jepa_wm.training.ac import ACRun, ACTrainer, PredictorSizes
from jepa_wm.training.dataset import DatasetInfo, Mixture, PlayDataset, open_datasets
from jepa_wm.training.decoder import (
    DecoderRun,
    DecoderSizes,
    DecoderTrainer,
    Pairs,
)
from jepa_wm.training.decoder_file import save_decoder
from jepa_wm.training.export import export
from jepa_wm.training.export_vjepa2 import ArmTask, export_ac, export_encoder, load_encoder
from jepa_wm.training.lewm import TrainConfig, Trainer
from jepa_wm.training.loop import Loop, figures, read_checkpoint
from jepa_wm.training.masked import EncoderRun, EncoderTrainer
from jepa_wm.training.masked_network import EncoderSizes
from jepa_wm.training.network import NetworkConfig
from jepa_wm.viz.training import training_curves

# not part of the run itself
_WHERE = ("trainer", "data", "holdout", "out", "init", "resume", "device", "threads", "encoder",
          "file_type", "task", "model", "preset", "overrides")  # fmt: skip


@dataclass(frozen=True)
class Places:
    """What a run works with.

    Attributes:
        data: Play to learn from.
        holdout: Play to probe on, or None.
        out: The run's folder.
        device: Where to compute.
    """

    data: PlayDataset | Mixture
    holdout: PlayDataset | None
    out: Path
    device: torch.device

    @classmethod
    def open(cls, options: dict[str, Any], device: torch.device) -> "Places":
        """Open the datasets an option names."""
        folders = options["data"] if isinstance(options["data"], list) else [options["data"]]
        data = open_datasets([Path(str(folder)).expanduser() for folder in folders])
        data.info = with_targets(data.info)
        holdout = options["holdout"] and PlayDataset(Path(str(options["holdout"])).expanduser())
        return cls(data, holdout or None, Path(str(options["out"])).expanduser(), device)


def with_targets(info: DatasetInfo) -> DatasetInfo:
    """Tell a collection of PushT, made before collections said so, what its states are."""
    if info.targets is not None or "PushT" not in info.env:
        return info
    return replace(info, targets=preset_node("task", "pusht")["targets"])


def run_config(options: dict[str, Any], kind: type, sizes: type) -> Any:
    """Turn the plain options of ``conf/train.yaml`` and a recipe into a checked ``kind``."""
    rest = {key: value for key, value in options.items() if key not in _WHERE}
    values = {**rest.pop("loss"), **rest}
    try:
        return kind(**_tuples(values) | {"network": sizes(**values["network"])})
    except TypeError as error:
        raise ConfigError(f"train options do not fit: {error}") from error


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def settle_amp(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Decide ``amp=auto``: bfloat16 where the hardware multiplies it; elsewhere it takes longer.

    A run that is continued, perhaps on another machine, stays with what it began with.
    """
    wanted = options["amp"]
    if wanted != "auto" and type(wanted) is not bool:
        raise ConfigError(f"amp={wanted!r} must be auto, true or false")
    if wanted == "auto" and options["resume"] is not None:
        wanted = _amp_of(Path(str(options["resume"])).expanduser(), wanted)
    return options | {"amp": has_fast_bfloat16(device) if wanted == "auto" else wanted}


def _amp_of(checkpoint: Path, otherwise: str) -> bool | str:
    """Return what a run began with; what is no checkpoint is refused when it is resumed."""
    saved: object = read_checkpoint(checkpoint, "resume", torch.device("cpu"))
    config = saved.get("config") if isinstance(saved, dict) else None
    began = config.get("amp") if isinstance(config, dict) else None
    return began if isinstance(began, bool) else otherwise


def train_config(options: dict[str, Any]) -> TrainConfig:
    """Turn the plain options of ``recipe=lewm`` into a checked ``TrainConfig``."""
    config: TrainConfig = run_config(options, TrainConfig, NetworkConfig)
    return config


Finish = Callable[[], Path]
"""Ends a finished run, on every rank; rank 0 writes the bundle and says where."""


def make_lewm(options: dict[str, Any], at: Places) -> tuple[Loop, Finish]:
    """Make the trainer of a LeWM."""
    trainer = Trainer(train_config(options), at.data, at.holdout, at.out, at.device)
    if options["init"] is not None:
        starts = options["init"] if isinstance(options["init"], list) else [options["init"]]
        trainer.start_from([Path(str(start)).expanduser() for start in starts])

    def finish() -> Path:
        trainer.recalibrate()
        return export(trainer, at.out / "lewm.gguf") if trainer.rank == 0 else at.out

    return trainer, finish


def make_encoder(options: dict[str, Any], at: Places) -> tuple[Loop, Finish]:
    """Make the trainer of an encoder."""
    config = run_config(options, EncoderRun, EncoderSizes)
    trainer = EncoderTrainer(config, at.data, at.holdout, at.out, at.device)
    target = at.out / "encoder.gguf"
    return trainer, lambda: export_encoder(trainer, target) if trainer.rank == 0 else target


def make_ac(options: dict[str, Any], at: Places) -> tuple[Loop, Finish]:
    """Make the trainer of an action-conditioned predictor."""
    config = run_config(options, ACRun, PredictorSizes)
    task = ArmTask(**_tuples(options["task"]))
    path = Path(str(options["encoder"])).expanduser()
    encoder, origin = load_encoder(path, at.device)
    trainer = ACTrainer(config, encoder, at.data, at.holdout, at.out, at.device)
    kind, target = str(options["file_type"]), at.out / "vjepa2-ac.gguf"

    def finish() -> Path:
        return export_ac(trainer, target, task, kind, origin) if trainer.rank == 0 else target

    return trainer, finish


def make_decoder(options: dict[str, Any], at: Places) -> tuple[Loop, Finish]:
    """Make the trainer of a decoder for a finished world model."""
    config = run_config(options, DecoderRun, DecoderSizes)
    bundle = Bundle.open(find_bundle(options["model"]))
    seen, stored = Preprocess.from_bundle(bundle).size, at.data.info.image_size
    if stored < seen:
        raise ConfigError(
            f"{at.data.folder} holds frames of {stored} px, {bundle.path} looks at {seen}: collect "
            f"with image_size={seen}"
        )
    world = load_world_model(bundle, at.device)

    def encode(frames: Tensor) -> Tensor:
        return world.encode(world.preprocess(frames[:, None]))[:, 0]

    data = Pairs.encode(at.data, config, encode, at.device)
    holdout = None
    if at.holdout is not None:
        holdout = Pairs.encode(at.holdout, config, encode, at.device)
    trainer = DecoderTrainer(config, data, holdout, at.out, at.device)
    about = {"model": str(bundle.path), "model_sha256": bundle.sha256}
    target = at.out / "decoder.npz"
    return (
        trainer,
        lambda: save_decoder(trainer.network, target, about) if trainer.rank == 0 else target,
    )


TRAINERS = {
    "lewm": make_lewm, "encoder": make_encoder, "ac": make_ac, "decoder": make_decoder,
}  # fmt: skip


def join_ranks(device: torch.device) -> torch.device:
    """Join the process group when started by torchrun; return this rank's device."""
    if "RANK" not in os.environ:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def main(options: dict[str, Any]) -> None:
    """Run one rank of the training and, on rank 0, write the bundle and the curves."""
    make = TRAINERS.get(str(options["trainer"]))
    if make is None:
        raise ConfigError(f"trainer={options['trainer']}: there are {', '.join(TRAINERS)}")
    if options["init"] is not None and make is not make_lewm:
        raise ConfigError("init= starts a LeWM from other runs; use resume= to continue this one")
    use_threads(options["threads"])
    at = Places.open(options, join_ranks(resolve_device(str(options["device"]))))
    trainer, finish = make(settle_amp(options, at.device), at)
    if options["resume"] is not None:
        trainer.resume(Path(str(options["resume"])).expanduser())
    elif (at.out / "checkpoint.pt").exists():
        raise ConfigError(
            f"{at.out} holds a checkpoint: continue it with resume={at.out}/checkpoint.pt, "
            "or choose another out="
        )
    trainer.run()
    path = finish()
    if trainer.rank == 0:
        training_curves(at.out / "metrics.jsonl").savefig(at.out / "curves.png", dpi=120)
        print(path)
        for name, value in figures(trainer.probe()).items():
            print(f"{name:<9} {value:.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, "train")
