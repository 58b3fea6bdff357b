"""Device, dtype, seeds, versions and the one way a command reports a user's mistake.

Everything that depends on the machine is chosen here by a leaf and handed down as an argument.
"""

import hashlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable

import torch

from jepa_wm.errors import ConfigError, JepaError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """Return the device for ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: the name is unknown or the device is absent.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={name!r} is unknown; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is not supported; use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"device={name!r} asked for, but {count} CUDA devices are present")
    return device


def use_threads(count: int | None) -> None:
    """Let torch use so many CPU threads; None leaves it all cores.

    Raises:
        ConfigError: it is no count.
    """
    if count is None:
        return
    if type(count) is not int or count < 1:
        raise ConfigError(f"threads={count!r} must be a whole number >= 1, or null for all cores")
    torch.set_num_threads(count)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Say whether bfloat16 matmuls run in hardware on this device (AMX or AVX512-BF16 on a CPU)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capability = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return bool(capability or getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for ``float32``, ``bfloat16``, ``float16`` or ``auto``.

    ``auto`` is bfloat16 where the hardware multiplies it, else float32.

    Raises:
        ConfigError: the name is unknown.
    """
    if name == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"dtype={name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def told_dtype(name: str, dtype: torch.dtype, device: torch.device) -> str:
    """Name a dtype, with the reason where ``auto`` chose it."""
    found = str(dtype).removeprefix("torch.")
    if name != "auto":
        return found
    what = "this GPU" if device.type == "cuda" else "this processor"
    verb = "multiplies" if has_fast_bfloat16(device) else "does not multiply"
    return f"{found} (auto: {what} {verb} bfloat16)"


def stream_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed from parts such as (seed, episode, purpose); equal parts, equal seed."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def synchronised_seconds(device: torch.device) -> float:
    """Return the wall clock in seconds after all queued work on ``device`` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def versions() -> dict[str, str]:
    """Return the versions of this package and of the libraries that can change a result."""
    names = ("jepa_wm", "torch", "gguf", "gymnasium", "pymunk", "numpy")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a bare checkout is not installed
            found[name] = "not installed"
    return found


def command(main: Callable[[], object]) -> None:
    """Run a command line.

    ``--version`` prints the versions that can change a result. A ``JepaError`` becomes one line on
    stderr and exit status 1, Ctrl-C exit status 130.
    """
    if "--version" in sys.argv[1:]:
        print("\n".join(f"{name} {version}" for name, version in versions().items()))
        return
    try:
        main()
    except JepaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader (head, less) went away: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
