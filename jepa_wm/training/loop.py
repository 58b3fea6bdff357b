"""The loop every trainer shares: step, log, probe, save, resume.

Exact by construction: step n draws all that is random from (seed, n), so a resumed run repeats the
uninterrupted one to the bit, and n ranks with B/n sequences follow one rank with B.
"""

import json
import math
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from jepa_wm.errors import ConfigError

_UNREADABLE = (
    OSError, EOFError, RuntimeError, KeyError, ValueError, TypeError, pickle.UnpicklingError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every training run has, whatever is trained.

    Attributes:
        steps: Optimiser steps.
        batch: Sequences a step, over all ranks.
        learning_rate: Peak rate of AdamW.
        warmup: Steps of linear warm-up; one cosine to zero follows.
        weight_decay: Decay of matrices; vectors are not decayed.
        betas: AdamW's averages.
        clip: Largest gradient norm.
        seed: Seeds weights, batches and what else is drawn.
        amp: Compute in bfloat16 where autocast allows it.
        log_every: Steps between metric records.
        probe_every: Steps between probes on held-out play; 0 for none.
        save_every: Steps between checkpoints.
    """

    steps: int
    batch: int
    learning_rate: float
    warmup: int
    weight_decay: float
    betas: tuple[float, float]
    clip: float
    seed: int
    amp: bool
    log_every: int
    probe_every: int
    save_every: int

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1:
            raise ConfigError(f"steps={self.steps} must be >= 0 and batch={self.batch} >= 1")
        for name in ("log_every", "save_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


def learning_rate(config: RunConfig, step: int) -> float:
    """Return the rate of ``step`` (0-based): linear warm-up, then one cosine to zero."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def adamw(parameters: Iterable[nn.Parameter], config: RunConfig) -> torch.optim.AdamW:
    """Make the optimiser of the parameters that learn; matrices alone are decayed."""
    learning = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in learning if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def read_checkpoint(path: Path, option: str, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint file without unpickling anything but tensors and plain values.

    Args:
        path: The file.
        option: What named it on the command line, for the error.
        device: Where its tensors go.

    Raises:
        ConfigError: the file is missing or unreadable.
    """
    if not path.is_file():
        raise ConfigError(f"{option}={path}: no such checkpoint")
    try:
        saved: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except _UNREADABLE as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"{path} is not a checkpoint of this trainer: {first_line}") from error
    return saved


def figures(result: Any) -> dict[str, float]:
    """Return the figures of a probe's dataclass by name; those of a table as ``table_name``."""
    found: dict[str, float] = {}
    for key, value in asdict(result).items():
        found |= (
            {f"{key}_{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        )
    return found


class Loop(ABC):
    """One rank of a training run.

    Args:
        config: The run.
        network: All that is saved; its parameters with gradients learn.
        data: What to learn from, of the kind the trainer draws from.
        holdout: The same to probe on while training, or None.
        out: Folder for ``checkpoint.pt`` and ``metrics.jsonl``; rank 0 writes.
        device: Where to compute.
    """

    free: ClassVar[frozenset[str]] = frozenset({"log_every", "probe_every", "save_every"})
    """Settings a resumed run may change."""

    def __init__(
        self,
        config: RunConfig,
        network: nn.Module,
        data: Any,
        holdout: Any,
        out: Path,
        device: torch.device,
    ) -> None:
        self.config, self.data, self.holdout = config, data, holdout
        self.out, self.device = out, device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if config.batch % self.ranks:
            raise ConfigError(f"batch={config.batch} does not divide over {self.ranks} ranks")
        self.network = network.to(device)
        self.optimizer = adamw(self.network.parameters(), config)
        self.step = 0

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, float]:
        """Weight of every loss term."""

    @property
    @abstractmethod
    def images_per_step(self) -> int:
        """Frames a step sees, over all ranks."""

    @abstractmethod
    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms of ``step`` on this rank's rows, and the latents they look at."""

    @abstractmethod
    def health(self, latents: Tensor) -> dict[str, float]:
        """Return figures that show a collapse, and warn of one."""

    @abstractmethod
    def probe(self) -> Any:
        """Evaluate on held-out play, or on the training play when there is none; a dataclass."""

    def after_step(self) -> None:  # noqa: B027  most trainers have nothing to add
        """Do what follows the optimiser's step."""

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        """Take one optimiser step; return its loss terms and latents, detached."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        terms, latents = self.losses(self.step)
        weights = self.weights
        total = torch.stack([weights[name] * term for name, term in terms.items()]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.optimizer.step()
        self.after_step()
        self.step += 1
        return {name: term.detach() for name, term in terms.items()}, latents.detach()

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
                    terms, latents = self.advance()
                    bar.update()
                    if self.step % c.log_every == 0 or self.step == c.steps:
                        rate = (self.step - first) / (time.perf_counter() - started)
                        bar.set_postfix(self._log(sink, terms, latents, rate), refresh=False)
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
        self, sink: TextIO | None, terms: dict[str, Tensor], latents: Tensor, rate: float
    ) -> dict[str, float]:
        """Write one metric record, and return its loss terms."""
        record = {name: float(term) for name, term in terms.items()}
        extra = {
            "step": self.step,
            "learning_rate": learning_rate(self.config, self.step - 1),
            **self.health(latents),
            "images_per_second": rate * self.images_per_step,
        }
        if sink is not None:
            sink.write(json.dumps({"kind": "train", **extra, **record}) + "\n")
        return {name: round(value, 4) for name, value in record.items()}

    def _probe(self, sink: TextIO | None) -> None:
        """Probe on held-out play (rank 0) and record it."""
        if sink is not None and self.holdout is not None:
            record = {"kind": "probe", "step": self.step, **figures(self.probe())}
            sink.write(json.dumps(record) + "\n")

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

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same run.

        Raises:
            ConfigError: the file is missing, unreadable, or from a run with other settings.
        """
        saved = read_checkpoint(path, "resume", self.device)
        try:
            step, config = int(saved["step"]), saved["config"]
            differing = self._differences(config)
            if differing:
                raise ConfigError(f"{path} is from a run with other settings: {differing}")
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not a checkpoint of this trainer: {error}") from error
        self.step = step

    def _differences(self, saved: dict[str, Any]) -> str:
        """Name the settings that differ from this run's."""
        return ", ".join(
            f"{key} was {saved.get(key)!r}, is {value!r}"
            for key, value in asdict(self.config).items()
            if key not in self.free and _plain(saved.get(key)) != _plain(value)
        )


def _plain(value: Any) -> Any:
    """Compare lists and tuples alike."""
    return list(value) if isinstance(value, tuple) else value
