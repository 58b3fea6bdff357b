"""Train a small LeWM on collected play and write it as a bundle.

Run: ``python -m jepa_wm.train data=data/play holdout=data/holdout out=runs/lewm``.
Data-parallel: ``torchrun --nproc-per-node 2 -m jepa_wm.train ...`` (gloo on CPU, nccl on CUDA).
Ctrl-C saves a checkpoint; ``resume=runs/lewm/checkpoint.pt`` continues exactly.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jepa_wm.errors import ConfigError
from jepa_wm.launch import launch
from jepa_wm.runtime import resolve_device
from jepa_wm.training.dataset import PlayDataset, open_datasets
from jepa_wm.training.export import export
from jepa_wm.training.lewm import TrainConfig, Trainer
from jepa_wm.training.network import NetworkConfig
from jepa_wm.viz.training import training_curves

_WHERE = (
    "data",
    "holdout",
    "out",
    "init",
    "resume",
    "device",
    "threads",
)  # not part of the run itself


def train_config(options: dict[str, Any]) -> TrainConfig:
    """Turn the plain options of ``conf/train.yaml`` into a checked ``TrainConfig``."""
    rest = {key: value for key, value in options.items() if key not in _WHERE}
    network = NetworkConfig(**rest.pop("network"))
    betas = tuple(rest.pop("betas"))
    try:
        return TrainConfig(network=network, betas=betas, **rest.pop("loss"), **rest)
    except TypeError as error:
        raise ConfigError(f"train options do not fit: {error}") from error


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
    torch.set_num_threads(int(options["threads"]))
    device = join_ranks(resolve_device(str(options["device"])))
    out = Path(str(options["out"])).expanduser()
    folders = options["data"] if isinstance(options["data"], list) else [options["data"]]
    data = open_datasets([Path(str(folder)).expanduser() for folder in folders])
    holdout = options["holdout"] and PlayDataset(Path(str(options["holdout"])).expanduser())
    trainer = Trainer(train_config(options), data, holdout or None, out, device)
    if options["init"] is not None:
        starts = options["init"] if isinstance(options["init"], list) else [options["init"]]
        trainer.start_from([Path(str(start)).expanduser() for start in starts])
    if options["resume"] is not None:
        trainer.resume(Path(str(options["resume"])).expanduser())
    elif (out / "checkpoint.pt").exists():
        raise ConfigError(
            f"{out} holds a checkpoint: continue it with resume={out}/checkpoint.pt, "
            "or choose another out="
        )
    trainer.run()
    trainer.recalibrate()
    if trainer.rank == 0:
        path = export(trainer, out / "lewm.gguf")
        training_curves(out / "metrics.jsonl").savefig(out / "curves.png", dpi=120)
        print(path)
        for name, value in asdict(trainer.probe()).items():
            print(f"{name:<9} {value:.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, "train")
