"""The LeWM training loop: step, log, probe, save, resume.

Exact by construction: step n draws its batch and its SIGReg directions from (seed, n), so a
resumed run repeats the uninterrupted one, and n ranks with B/n sequences follow one rank with B.
"""

import json
import math
import pickle
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from jepa_wm.errors import ConfigError
from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.losses import prediction_loss, random_directions, sigreg
from jepa_wm.training.network import BatchNorm, NetworkConfig, TrainingNetwork, state_targets
from jepa_wm.training.probes import ProbeResult, effective_rank, probe

_UNREADABLE = (
    OSError, EOFError, RuntimeError, KeyError, ValueError, TypeError, pickle.UnpicklingError,
)  # fmt: skip
_COLLAPSED_STD = 0.05
_COLLAPSED_SHARE = 1 / 8  # effective rank as a share of the live columns


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a training run.

    Attributes:
        network: Sizes.
        steps: Optimiser steps; 0 only renews the BatchNorm statistics and exports.
        batch: Sequences a step, over all ranks.
        learning_rate: Peak rate of AdamW.
        warmup: Steps of linear warm-up; one cosine to zero follows.
        weight_decay: Decay of matrices; vectors are not decayed.
        betas: AdamW's averages.
        clip: Largest gradient norm.
        sigreg_weight: Weight of SIGReg.
        sigreg_directions: Random directions a step.
        sigreg_over: ``batch`` takes statistics per frame position (the paper's code);
            ``batch_time`` over batch and time together (better for small batches).
        rollout_weight: Weight of a second prediction from the predictor's own outputs; 0 is the
            paper's teacher forcing only.
        state_weight: Weight of the auxiliary regression of the simulator state; 0 is pure LeWM.
        seed: Seeds weights, batches and directions.
        amp: Compute in bfloat16 where autocast allows it.
        log_every: Steps between metric records.
        probe_every: Steps between probes on held-out play.
        save_every: Steps between checkpoints.
        recalibrate: Batches that renew the BatchNorm statistics before export.
    """

    network: NetworkConfig
    steps: int
    batch: int
    learning_rate: float
    warmup: int
    weight_decay: float
    betas: tuple[float, float]
    clip: float
    sigreg_weight: float
    sigreg_directions: int
    sigreg_over: str
    rollout_weight: float
    state_weight: float
    seed: int
    amp: bool
    log_every: int
    probe_every: int
    save_every: int
    recalibrate: int

    def __post_init__(self) -> None:
        if self.sigreg_over not in ("batch", "batch_time"):
            raise ConfigError(f"sigreg_over={self.sigreg_over!r}: use batch or batch_time")
        if self.steps < 0 or self.batch < 1:
            raise ConfigError(f"steps={self.steps} must be >= 0 and batch={self.batch} >= 1")


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the rate of ``step`` (0-based): linear warm-up, then one cosine to zero."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class Trainer:
    """One rank of a training run.

    Args:
        config: The run.
        data: Play to learn from.
        holdout: Play to probe on, or None.
        out: Folder for ``checkpoint.pt`` and ``metrics.jsonl``; rank 0 writes.
        device: Where to compute.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: PlayDataset | Mixture,
        holdout: PlayDataset | None,
        out: Path,
        device: torch.device,
    ) -> None:
        self.config, self.data, self.holdout, self.out = config, data, holdout, out
        self.device = device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if config.batch % self.ranks:
            raise ConfigError(f"batch={config.batch} does not divide over {self.ranks} ranks")
        if data.info.image_size != config.network.image_size:
            raise ConfigError(
                f"{data.folder} holds frames of {data.info.image_size} px, "
                f"network.image_size is {config.network.image_size}"
            )
        torch.manual_seed(config.seed)
        block = data.info.block
        mean, std = data.action_statistics()
        self.network = TrainingNetwork(
            config.network,
            block * data.info.action_dim,
            np.tile(mean, block),
            np.tile(std, block),
            *data.pixel_statistics(),
        ).to(device)
        matrices = [p for p in self.network.parameters() if p.ndim > 1]
        vectors = [p for p in self.network.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            fused=True,
        )
        self.step = 0

    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms of ``step`` on this rank's rows, and the live latents [B,T,D]."""
        c = self.config
        rng = np.random.default_rng([c.seed, step])
        rows = slice(self.rank, None, self.ranks)
        batch = self.data.windows(rng, c.batch, c.network.n_frames + 1, rows)
        frames, actions, states = (
            torch.from_numpy(x).to(self.device) for x in (batch.frames, batch.actions, batch.states)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.amp):
            z = self.network.encode(frames)
            predicted = self.network.predict(z[:, :-1], actions)
            if c.rollout_weight:  # frame t+1 from predictions of the frames before it
                own = torch.cat([z[:, :1], predicted[:, :-1]], 1)
                again = self.network.predict(own, actions)
        live = self.network.live(z).float()
        generator = torch.Generator().manual_seed(c.seed * 1_000_003 + step)
        directions = random_directions(live.shape[-1], c.sigreg_directions, generator)
        groups = live.flatten(0, 1)[None] if c.sigreg_over == "batch_time" else live.transpose(0, 1)
        terms = {
            "prediction": prediction_loss(self.network.live(predicted), live[:, 1:]),
            "sigreg": sigreg(groups, directions),
        }
        if c.rollout_weight:
            terms["rollout"] = prediction_loss(self.network.live(again[:, 1:]), live[:, 2:])
        if c.state_weight:
            error = self.network.state_head(live) - state_targets(states)
            terms["state"] = error.square().mean()
        return terms, live

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        """Take one optimiser step; return its loss terms and latents, detached."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(c, self.step)
        terms, live = self.losses(self.step)
        weights = {
            "prediction": 1.0,
            "sigreg": c.sigreg_weight,
            "rollout": c.rollout_weight,
            "state": c.state_weight,
        }
        total = torch.stack([weights[name] * term for name, term in terms.items()]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), c.clip)
        self.optimizer.step()
        self.step += 1
        return {name: term.detach() for name, term in terms.items()}, live.detach()

    def _average_gradients(self) -> None:
        """Average gradients over ranks in one message."""
        if self.ranks == 1:
            return
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.ranks
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    def run(self) -> None:
        """Train to the last step; an interrupt saves a checkpoint first."""
        c = self.config
        started, first = time.perf_counter(), self.step
        bar = tqdm(
            total=c.steps, initial=self.step, unit="step", disable=None if self.rank == 0 else True
        )
        with self._metrics() as sink, bar:
            try:
                while self.step < c.steps:
                    terms, live = self.advance()
                    bar.update()
                    if self.step % c.log_every == 0 or self.step == c.steps:
                        rate = (self.step - first) / (time.perf_counter() - started)
                        bar.set_postfix(self._log(sink, terms, live, rate), refresh=False)
                    if c.probe_every and self.step % c.probe_every == 0:
                        self._probe(sink)
                    if self.step % c.save_every == 0 and self.step < c.steps:
                        self.save()
            except KeyboardInterrupt:
                self.save()
                raise
        self.save()

    @contextmanager
    def _metrics(self) -> Iterator[TextIO | None]:
        """Open the metrics file for appending on rank 0."""
        if self.rank:
            yield None
            return
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "metrics.jsonl").open("a", buffering=1) as sink:
            yield sink

    def _log(
        self, sink: TextIO | None, terms: dict[str, Tensor], live: Tensor, rate: float
    ) -> dict[str, float]:
        """Write one metric record and warn when the latent has collapsed."""
        record = {name: float(term) for name, term in terms.items()}
        flat = live.flatten(0, 1)
        std_min, rank = float(flat.std(0).min()), effective_rank(flat.cpu())
        if sink is not None:
            extra = {
                "step": self.step,
                "learning_rate": learning_rate(self.config, self.step - 1),
                "std_min": std_min,
                "rank": rank,
                "images_per_second": rate * self.config.batch * live.shape[1],
            }
            sink.write(json.dumps({"kind": "train", **extra, **record}) + "\n")
        if std_min < _COLLAPSED_STD or rank < max(1.5, _COLLAPSED_SHARE * live.shape[-1]):
            warnings.warn(
                f"step {self.step}: the latent is collapsing (smallest standard deviation "
                f"{std_min:.3f}, effective rank {rank:.1f} of {live.shape[-1]}); raise "
                "sigreg_weight or the batch",
                stacklevel=2,
            )
        return {name: round(value, 4) for name, value in record.items()}

    def _probe(self, sink: TextIO | None) -> None:
        """Probe on held-out play (rank 0) and record it."""
        if sink is None or self.holdout is None:
            return
        result = self.probe()
        sink.write(json.dumps({"kind": "probe", "step": self.step, **asdict(result)}) + "\n")

    def probe(self, windows: int = 512) -> ProbeResult:
        """Evaluate on held-out play, or on the training play when there is none."""
        return probe(self.network, self.holdout or self.data, windows, self.config.seed)

    def recalibrate(self) -> None:
        """Renew BatchNorm statistics as plain averages over fresh batches.

        At high learning rates the running statistics lag behind the weights.
        """
        norms = [m for m in self.network.modules() if isinstance(m, BatchNorm)]
        for norm in norms:
            norm.batches.zero_()
            norm.cumulative = True
        with torch.no_grad():
            for index in range(self.config.recalibrate):
                self.losses(self.config.steps + index)
        for norm in norms:
            norm.cumulative = False

    def save(self) -> None:
        """Write ``checkpoint.pt`` atomically (rank 0)."""
        if self.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / "checkpoint.pt.part"
        torch.save(
            {
                "step": self.step,
                "config": asdict(self.config),
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            },
            part,
        )
        part.replace(self.out / "checkpoint.pt")

    def start_from(self, paths: Sequence[Path]) -> None:
        """Take weights and statistics, not the optimiser or the step, from other runs.

        Several runs that share a start are averaged, weight by weight ("model soup", arXiv
        2203.05482); the BatchNorm statistics are averaged too and want recalibration.

        Raises:
            ConfigError: a file is missing, unreadable, or of a network with other sizes.
        """
        found = []
        for path in paths:
            saved = self._read(path, "init")
            try:
                self.network.load_state_dict(saved["network"])
            except (RuntimeError, KeyError) as error:
                raise ConfigError(f"init={path} is of another network: {error}") from error
            found.append({name: value.clone() for name, value in saved["network"].items()})
        mean = {
            name: torch.stack([state[name] for state in found]).mean(0)
            if value.is_floating_point()
            else value
            for name, value in found[0].items()
        }
        self.network.load_state_dict(mean)

    def _read(self, path: Path, option: str) -> dict[str, Any]:
        """Read a checkpoint file without unpickling anything but tensors and plain values."""
        if not path.is_file():
            raise ConfigError(f"{option}={path}: no such checkpoint")
        try:
            saved: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        except _UNREADABLE as error:
            first_line = str(error).partition("\n")[0]
            raise ConfigError(
                f"{path} is not a checkpoint of this trainer: {first_line}"
            ) from error
        return saved

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same run.

        Raises:
            ConfigError: the file is missing, unreadable, or from a run with other settings.
        """
        saved = self._read(path, "resume")
        try:
            step, config = int(saved["step"]), saved["config"]
            differing = _differences(config, asdict(self.config))
            if differing:
                raise ConfigError(f"{path} is from a run with other settings: {differing}")
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not a checkpoint of this trainer: {error}") from error
        self.step = step


def _differences(saved: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the settings that differ; how often to log, probe and save may change."""
    free = {"log_every", "probe_every", "save_every", "recalibrate"}
    return ", ".join(
        f"{key} was {saved.get(key)!r}, is {value!r}"
        for key, value in wanted.items()
        if key not in free and _plain(saved.get(key)) != _plain(value)
    )


def _plain(value: Any) -> Any:
    """Compare lists and tuples alike."""
    return list(value) if isinstance(value, tuple) else value
