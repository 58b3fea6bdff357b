"""Turn a trained encoder, or one with its action-conditioned predictor, into a vjepa2 bundle."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import ConfigError
from jepa_wm.models.ac import N_COND
from jepa_wm.models.pose import POSE_DIM
from jepa_wm.training.ac import ACTrainer
from jepa_wm.training.dataset import DatasetInfo
from jepa_wm.training.goal_map import fit_goal_map
from jepa_wm.training.loop import read_checkpoint
from jepa_wm.training.masked import EncoderRun, EncoderTrainer
from jepa_wm.training.masked_network import EncoderSizes, MaskedNetwork

# told by other keys or by tensor shapes
_NOT_ENCODER_KEYS = ("rope_theta", "pos_interp", "hier_layers", "rope_ref_grid")
_MASKED_KEYS = ("embed_dim", "n_layer", "n_head", "ffn_dim", "out_dim", "n_mask_tokens",
                "grid_size", "ln_eps", "act", "qkv_bias", "rope_freq_layout")  # fmt: skip


def load_encoder(path: Path, device: torch.device) -> tuple[MaskedNetwork, dict[str, str]]:
    """Read an encoder from the checkpoint of its run, with what a bundle says of its origin.

    Raises:
        ConfigError: the file is missing, unreadable, or of another trainer.
    """
    saved = read_checkpoint(path, "encoder", device)
    try:
        config = dict(saved["config"])
        run = EncoderRun(network=EncoderSizes(**config.pop("network")), **config)
        columns = torch.zeros(len(run.state_columns))
        channels = (0.0,) * 3
        given = (channels, channels), (columns, columns)  # the checkpoint holds the real ones
        network = MaskedNetwork(run.network, run.frames, *given)
        network.load_state_dict(saved["network"])
        steps = int(saved["step"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(
            f"encoder={path} is not a checkpoint of recipe=encoder: {first_line}"
        ) from error
    origin = {"encoder_steps": str(steps), "encoder_state_weight": str(run.state_weight)}
    return network, origin


def encoder_meta(network: MaskedNetwork, info: DatasetInfo, sha256: str) -> dict[str, Any]:
    """Return what a bundle says of the encoder, its pixels and its play."""
    config = network.target.config
    encoder = {k: v for k, v in asdict(config).items() if k not in _NOT_ENCODER_KEYS}
    size = config.img_size
    return {
        "general.license": "mit",
        "jepa.family": "vjepa2",
        "jepa.modality": "video",
        **{f"jepa.enc.{key}": value for key, value in encoder.items()},
        "jepa.enc.qkv_fused": True,
        "jepa.head.kind": "none",
        "jepa.pre.mean": network.pixel_mean.flatten().tolist(),
        "jepa.pre.std": network.pixel_std.flatten().tolist(),
        "jepa.pre.resize_short": size,
        "jepa.pre.crop": size,
        "jepa.pre.resample": "bilinear",
        "jepa.pre.resize_mode": "squash",
        "jepa_wm.source.entry": "trained by jepa_wm.train on scripted play",
        "jepa_wm.source.env": info.env,
        "jepa_wm.source.play_seed": str(info.seed),
        "jepa_wm.source.sha256": sha256,
    }


def _prefixed(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value.detach().cpu().float() for name, value in state.items()}


def export_encoder(trainer: EncoderTrainer, path: Path, file_type: str = "f32") -> Path:
    """Write the slow encoder and the masked predictor as a bundle and return its path."""
    network, config = trainer.network, trainer.config
    predictor = asdict(network.pred.config)
    meta = encoder_meta(network, trainer.data.info, trainer.data.sha256()) | {
        "general.name": f"vjepa2-{network.target.config.img_size}px",
        "jepa.pred.kind": "masked",
        **{f"jepa.pred.{key}": predictor[key] for key in _MASKED_KEYS},
        "jepa_wm.source.steps": str(trainer.step),
        "jepa_wm.source.state_weight": str(config.state_weight),
    }
    tensors = _prefixed("enc", network.target.state_dict())
    tensors |= _prefixed("pred", network.pred.state_dict())
    return write_bundle(path, meta, tensors, file_type)


@dataclass(frozen=True, kw_only=True)
class ArmTask:
    """What a bundle says of the environment beside the model.

    Attributes:
        low: Least action, [7].
        high: Greatest action, [7].
        goal_columns: Columns of the state that success is measured in; none leaves the map out.
        tolerance: How near counts as success, in their units.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    goal_columns: tuple[int, ...]
    tolerance: float

    def __post_init__(self) -> None:
        if {len(self.low), len(self.high)} != {POSE_DIM} or self.tolerance <= 0:
            raise ConfigError(
                f"task: low and high must be {POSE_DIM} numbers each, tolerance above 0; got "
                f"{list(self.low)}, {list(self.high)}, {self.tolerance}"
            )


def export_ac(
    trainer: ACTrainer, path: Path, task: ArmTask, file_type: str, origin: Mapping[str, str]
) -> Path:
    """Write the frozen encoder and the trained predictor as a world model's bundle.

    Args:
        trainer: A trained run.
        path: Where.
        task: The environment's side.
        file_type: Type of the matrices.
        origin: More ``jepa_wm.source.*`` keys, without the prefix.

    Returns:
        The path.
    """
    predictor = trainer.network.folded()
    sizes = asdict(predictor.config)
    sizes.pop("rope_theta")
    meta = encoder_meta(trainer.encoder, trainer.data.info, trainer.data.sha256()) | {
        "general.name": f"vjepa2-ac-{trainer.encoder.target.config.img_size}px",
        "jepa.pred.kind": "ac",
        **{f"jepa.pred.{key}": value for key, value in sizes.items()},
        "jepa.pred.n_cond_tokens": N_COND,
        "jepa.pred.cond_order": "action,state",
        "jepa_wm.action.mean": [0.0] * POSE_DIM,
        "jepa_wm.action.std": [1.0] * POSE_DIM,
        "jepa_wm.action.low": list(task.low),
        "jepa_wm.action.high": list(task.high),
        "jepa_wm.action.block": 1,
        "jepa_wm.source.steps": str(trainer.step),
        **{f"jepa_wm.source.{key}": value for key, value in origin.items()},
    }
    if task.goal_columns:
        z, states = trainer.play.z.flatten(0, 1), trainer.play.states.flatten(0, 1)
        meta["jepa_wm.goal.map"] = fit_goal_map(
            z, states[:, list(task.goal_columns)], task.tolerance
        )
    tensors = _prefixed("enc", trainer.encoder.target.state_dict())
    tensors |= _prefixed("pred", predictor.state_dict())
    return write_bundle(path, meta, tensors, file_type)
