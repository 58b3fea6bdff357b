"""Turn a trained network into a bundle: fold BatchNorm, pad the latent, write the statistics."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.writer import write_bundle
from jepa_wm.models.lewm import fold_batch_norm
from jepa_wm.training.lewm import Trainer
from jepa_wm.training.network import TrainingNetwork

ACTION_LOW, ACTION_HIGH = -1.0, 1.0  # where a collection does not tell: relative actions of PushT


def bundle_tensors(network: TrainingNetwork) -> dict[str, Tensor]:
    """Return the bundle's tensors: weights under their own names, projectors folded and padded.

    BatchNorm (evaluation mode) goes into the first linear layer of its projector; the last layer
    gets zero rows up to the model's width, so that the dead columns of a latent are exact zeros.
    """
    state = {name: value.detach().cpu() for name, value in network.model.state_dict().items()}
    tensors = {name: value for name, value in state.items() if ".proj." not in name}
    width = network.config.embed_dim
    for prefix in ("enc.proj", "pred.proj"):
        norm = {
            part: state[f"{prefix}.1.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        }
        weight, bias = fold_batch_norm(state[f"{prefix}.0.weight"], state[f"{prefix}.0.bias"], norm)
        tensors[f"{prefix}.0.weight"], tensors[f"{prefix}.0.bias"] = weight, bias
        last, last_bias = state[f"{prefix}.3.weight"], state[f"{prefix}.3.bias"]
        padded = torch.zeros(width, last.shape[1])
        padded[: len(last)] = last
        tensors[f"{prefix}.2.weight"] = padded
        tensors[f"{prefix}.2.bias"] = torch.cat([last_bias, torch.zeros(width - len(last))])
    return tensors


def goal_map(network: TrainingNetwork) -> list[float]:
    """Return the map of latents to states in units of the success tolerances, row-major.

    The trained state head gives the parts of a state; in PushT a distance in them weighs 20 px and
    20 degrees alike, where the latent's own L2 weighs the agent five times the block.
    """
    assert network.state_head is not None  # it has been trained
    weight = network.state_head.weight.detach().cpu()  # [targets, latent_dim]
    padded = torch.zeros(len(weight), network.config.embed_dim)
    padded[:, : weight.shape[1]] = weight
    return (padded * torch.tensor(network.targets.in_tolerances())[:, None]).flatten().tolist()


def bundle_meta(trainer: Trainer) -> dict[str, Any]:
    """Return the bundle's metadata: graph, preprocessing, action statistics, origin."""
    network, info, config = trainer.network.config, trainer.data.info, trainer.config
    encoder = asdict(network.encoder())
    interpolation = encoder.pop("pos_interp")
    predictor = asdict(network.predictor(info.block * info.action_dim))
    hidden = ("action_hidden", "proj_hidden")  # told by tensor shapes
    # what the network was trained with; a run that started from another may not match its data
    buffers = (trainer.network.action_mean, trainer.network.action_std)
    mean, std = (buffer[: info.action_dim].tolist() for buffer in buffers)
    return {
        "general.name": f"lewm-{_slug(info.env)}-{network.image_size}px",
        "general.license": "mit",
        "jepa.family": "lewm",
        "jepa.modality": "image",
        **{f"jepa.enc.{key}": value for key, value in encoder.items()},
        "jepa.enc.tubelet_size": 1,
        "jepa.enc.n_frames": 1,
        "jepa.enc.pos_type": "learned",
        "jepa.enc.qkv_fused": True,
        "jepa.enc.proj_act": "gelu_erf",
        "jepa_wm.enc.pos_interp": interpolation,
        "jepa.pred.kind": "lewm",
        **{f"jepa.pred.{key}": value for key, value in predictor.items() if key not in hidden},
        "jepa.pred.out_dim": network.embed_dim,
        "jepa.pred.state_dim": 0,
        "jepa.pred.frame_causal": True,
        "jepa.pred.qkv_bias": False,
        "jepa.head.kind": "none",
        "jepa.pre.mean": trainer.network.pixel_mean.flatten().tolist(),
        "jepa.pre.std": trainer.network.pixel_std.flatten().tolist(),
        "jepa.pre.resize_short": network.image_size,
        "jepa.pre.crop": network.image_size,
        "jepa.pre.resample": "bilinear",
        "jepa.pre.resize_mode": "squash",
        "jepa_wm.action.mean": mean,
        "jepa_wm.action.std": std,
        "jepa_wm.action.low": info.action_low or [ACTION_LOW] * info.action_dim,
        "jepa_wm.action.high": info.action_high or [ACTION_HIGH] * info.action_dim,
        "jepa_wm.action.block": info.block,
        **({"jepa_wm.goal.map": goal_map(trainer.network)} if config.state_weight else {}),
        "jepa_wm.source.entry": "trained by jepa_wm.train on scripted play",
        "jepa_wm.source.env": info.env,
        "jepa_wm.source.sha256": trainer.data.sha256(),
        "jepa_wm.source.play_seed": str(info.seed),
        "jepa_wm.source.steps": str(config.steps),
        "jepa_wm.source.state_weight": str(config.state_weight),
    }


def _slug(env: str) -> str:
    """Return the short name of an environment: ``pusht`` of ``jepa_wm/PushT-v0``."""
    return env.partition("/")[2].partition("-v")[0].lower() or "play"


def export(trainer: Trainer, path: Path) -> Path:
    """Write the trained model as a bundle and return its path."""
    return write_bundle(path, bundle_meta(trainer), bundle_tensors(trainer.network))
