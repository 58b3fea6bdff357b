"""A small decoder for a finished world model: latents in, frames out, for those who want pixels.

The model does not know it: it is trained afterwards on frames and their latents, and what it draws
of a prediction is its own guess.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from jepa_wm.errors import ConfigError
from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.encoder_probe import Encode
from jepa_wm.training.loop import Loop, RunConfig
from jepa_wm.training.pictures import shrink

_DIRECTIONS = 64  # of latents that are looked at
_ROWS = 1000  # latents these are found with
_FLAT = 1e-6  # of the widest direction's variance: narrower ones tell nothing
_BELL = 0.12  # first width of a bell, of the picture's side
_CHUNK = 64
_LARGEST_SIDE, _LARGEST_WIDTH = 512, 256


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a decoder.

    Attributes:
        image_size: Side of the pictures, px, an even number.
        points: Places it draws around.
        width: Channels of the first layer that draws; the second has half as many.

    Raises:
        ConfigError: a size is impossible.
    """

    image_size: int
    points: int
    width: int

    def __post_init__(self) -> None:
        side = self.image_size
        if not 8 <= side <= _LARGEST_SIDE or side % 2:
            raise ConfigError(f"image_size={side} must be an even number, 8 to {_LARGEST_SIDE}")
        for name in ("points", "width"):
            if not 2 <= getattr(self, name) <= _LARGEST_WIDTH:
                raise ConfigError(f"{name}={getattr(self, name)} must be 2 to {_LARGEST_WIDTH}")


@dataclass(frozen=True, kw_only=True)
class DecoderRun(RunConfig):
    """Everything that decides a decoder's training run.

    Attributes:
        network: Sizes.
        frames: Most frames to learn from, evenly over the play; all of them are held in memory.
    """

    network: DecoderSizes
    frames: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames < 2:
            raise ConfigError(f"frames={self.frames} must be at least 2")


class Decoder(nn.Module):
    """Maps latents to pictures: places by a linear map, a bell around each, layers that paint them.

    Where things are is mostly linear in a latent, and pictures are mostly where things are: drawing
    from places learns in a minute what spreading a latent over a grid does not in ten. The latent
    is first projected to its widest directions, whitened.

    Args:
        sizes: Of pictures and layers.
        latent: Shape of a latent, whatever its axes.
    """

    centre: Tensor
    basis: Tensor
    usual: Tensor
    axis: Tensor

    def __init__(self, sizes: DecoderSizes, latent: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes, self.latent = sizes, latent
        side, numbers = sizes.image_size, math.prod(latent)
        directions = min(_DIRECTIONS, numbers)
        self.place = nn.Linear(directions, 2 * sizes.points)
        nn.init.normal_(self.place.weight, std=0.3 * directions**-0.5)
        nn.init.uniform_(self.place.bias, 0.2, 0.8)
        self.log_width = nn.Parameter(torch.full((sizes.points,), math.log(_BELL)))
        self.paint = nn.Conv2d(sizes.points, sizes.width, 3, padding=1)
        self.refine = nn.Conv2d(sizes.width, sizes.width // 2, 3, padding=1)
        self.last = nn.Conv2d(sizes.width // 2, 12, 3, padding=1)  # four pixels of three colours
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)  # the first picture is the mean one
        self.register_buffer("centre", torch.zeros(numbers))
        self.register_buffer("basis", torch.zeros(numbers, directions))
        self.register_buffer("usual", torch.zeros(3, side, side))
        self.register_buffer("axis", (torch.arange(side // 2) + 0.5) / (side // 2))

    def forward(self, z: Tensor) -> Tensor:
        """Draw latents float [B,*L] as float32 [B,3,s,s], about 0 to 1."""
        told = (z.flatten(1) - self.centre) @ self.basis
        places = self.place(told).unflatten(1, (-1, 2))  # [B,points,2], 0 to 1 is the picture
        gap = (self.axis - places[..., None]) / self.log_width.exp()[:, None, None]
        bells = torch.exp(-0.5 * gap.square())  # [B,points,2,s/2]
        x = bells[:, :, 1, :, None] * bells[:, :, 0, None, :]
        x = F.gelu(self.refine(F.gelu(self.paint(x))))
        return F.pixel_shuffle(self.last(x), 2).float() + self.usual

    @torch.no_grad()
    def fit_scales(self, z: Tensor, frames: Tensor) -> None:
        """Take the mean picture and the latents' widest directions.

        Args:
            z: Latents float [M,*L].
            frames: Their pictures, uint8 [M,s,s,3].
        """
        flat = z.flatten(1).double()
        self.centre.copy_(flat.mean(0))
        rows = flat[:: -(-len(flat) // _ROWS)] - flat.mean(0)
        size, vectors = torch.linalg.eigh(rows @ rows.T)  # rows are fewer than numbers, or few
        wide = (size > _FLAT * size[-1].clamp(min=1e-12)).nonzero()[-self.basis.shape[1] :, 0]
        scale = len(rows) ** 0.5 / size[wide]
        self.basis[:, : len(wide)] = ((rows.T @ vectors[:, wide]) * scale).float()
        pictures = [part.permute(0, 3, 1, 2).double().sum(0) for part in frames.split(_CHUNK)]
        self.usual.copy_(torch.stack(pictures).sum(0) / (255 * len(frames)))

    @torch.no_grad()
    def pictures(self, z: Tensor) -> Tensor:
        """Draw latents [B,*L] as uint8 [B,s,s,3], on the CPU."""
        device = self.centre.device
        parts = [self(part.to(device).float()).cpu() for part in z.split(_CHUNK)]
        return (255 * torch.cat(parts)).round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def psnr(found: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of pictures uint8 [..,s,s,3], float64 [..].

    10 log10(255^2 / mean squared error); 100 dB where they are equal.
    """
    error = (found.double() - true.double()).square().mean((-3, -2, -1))
    return 10 * (255**2 / error.clamp(min=255**2 / 1e10)).log10()


@dataclass(frozen=True)
class DecoderProbe:
    """Figures of one evaluation.

    Attributes:
        psnr: Mean over frames of the ratio between decoded and true pictures, dB.
        psnr_mean: The same of always drawing the mean picture.
    """

    psnr: float
    psnr_mean: float


@dataclass(frozen=True, eq=False)
class Pairs:
    """Latents float32 [M,*L] and their pictures uint8 [M,s,s,3]."""

    z: Tensor
    frames: Tensor

    @classmethod
    def encode(
        cls, data: PlayDataset | Mixture, config: DecoderRun, encode: Encode, device: torch.device
    ) -> "Pairs":
        """Encode at most ``config.frames`` frames, evenly over the play, behind a progress bar."""
        parts = data.parts if isinstance(data, Mixture) else [data]
        latents, pictures = [], []
        for part in parts:
            frames = part.frames.reshape(-1, *part.frames.shape[2:])
            count = min(len(frames), max(1, config.frames // len(parts)))
            chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
            pieces = np.array_split(chosen, -(-count // _CHUNK))
            for rows in tqdm(pieces, desc="encoding", unit="batch", leave=False):
                batch = np.ascontiguousarray(frames[rows])
                with torch.no_grad():
                    latents.append(encode(torch.from_numpy(batch).to(device)).float().cpu())
                pictures.append(torch.from_numpy(shrink(batch, config.network.image_size)))
        return cls(torch.cat(latents), torch.cat(pictures))


class DecoderTrainer(Loop):
    """One rank of a decoder's training run.

    Args:
        config: The run.
        data: What to learn from.
        holdout: What to probe on, or None.
        out: Folder for ``checkpoint.pt`` and ``metrics.jsonl``; rank 0 writes.
        device: Where to compute.
    """

    config: DecoderRun
    network: Decoder
    data: Pairs
    holdout: Pairs | None

    def __init__(
        self,
        config: DecoderRun,
        data: Pairs,
        holdout: Pairs | None,
        out: Path,
        device: torch.device,
    ) -> None:
        torch.manual_seed(config.seed)
        network = Decoder(config.network, tuple(data.z.shape[1:]))
        network.fit_scales(data.z, data.frames)
        super().__init__(config, network, data, holdout, out, device)

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of every loss term."""
        return {"pixels": 1.0}

    @property
    def images_per_step(self) -> int:
        """Frames a step sees, over all ranks."""
        return self.config.batch

    def losses(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the mean squared error of the pixels at ``step``, and the pictures [B,3,s,s]."""
        c = self.config
        rng = np.random.default_rng([c.seed, step])
        drawn = rng.integers(len(self.data.z), size=c.batch)[self.rank :: self.ranks]
        rows = torch.from_numpy(drawn)
        z, frames = (x[rows].to(self.device) for x in (self.data.z, self.data.frames))
        true = frames.permute(0, 3, 1, 2).float() / 255
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.amp):
            found = self.network(z)
        return {"pixels": (found - true).square().mean()}, found

    def health(self, latents: Tensor) -> dict[str, float]:
        """Return how much pictures differ from each other: 0 is the mean picture alone."""
        return {"std": float(latents.float().std(0).mean())}

    def probe(self) -> DecoderProbe:
        """Evaluate on held-out play, or on the training play when there is none."""
        seen = self.holdout or self.data
        true, found = seen.frames, self.network.pictures(seen.z)
        usual = (255 * self.network.usual.cpu()).round().byte().permute(1, 2, 0)
        means = [float(psnr(x, true).mean()) for x in (found, usual.expand_as(true))]
        return DecoderProbe(*means)
