"""Open a bundle: one GGUF file with an encoder and maybe a predictor, a head and action statistics.

First stage of the flow (path -> Bundle). ``Bundle.open`` verifies everything but the weights'
values and reads no weight; ``Bundle.tensor`` reads one tensor, as float32 that owns its memory. No
descriptor stays open in between: a file that is changed after ``open`` is noticed and refused.
"""

import hashlib
import importlib.resources
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType

from jepa_wm.bundle import quant, schema
from jepa_wm.bundle.faults import bundle_error, printable
from jepa_wm.bundle.header import Header, StoredTensor, parse_header
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import is_operand, tensor_faults
from jepa_wm.errors import BundleError
from jepa_wm.hub import parse, resolve


class Bundle:
    """A verified bundle on disk.

    Attributes:
        path: The file.
        family: Model family, one of ``schema.FAMILIES``.
        modality: ``image``, ``video`` or ``image+video``.
        meta: Stored keys, read-only: numbers, bools, strings, tuples (unknown number arrays as
            numpy).
        unsupported: Tensors whose type cannot be decoded, with the type; ``tensor`` refuses them.
        notes: Harmless oddities of the file.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        meta: dict[str, Any],
        shapes: dict[str, tuple[int, ...]],
        identity: tuple,
    ) -> None:
        self.path = path
        self.meta: Mapping[str, Any] = MappingProxyType(meta)
        self.family: str = self.get("jepa.family")
        self.modality: str = self.get("jepa.modality")
        self.notes: tuple[str, ...] = ()
        self._stored = header.tensors
        self._shapes = shapes
        self._identity = identity
        self._sha256 = ""
        self.unsupported: Mapping[str, str] = MappingProxyType(
            {
                name: stored.type_name
                for name, stored in header.tensors.items()
                if not _is_decodable(stored)
            }
        )

    @classmethod
    def open(cls, path: Path | str) -> "Bundle":
        """Open and verify a bundle.

        Args:
            path: A GGUF file, or its name on the hub (``hf://OWNER/REPO/FILE``).

        Raises:
            BundleError: one error naming every fault found: not a regular file, broken container,
                wrong or missing keys, tensors missing, misshapen, misplaced or not of this model.
            ConfigError: a name on the hub that cannot be fetched.
        """
        found = examine(resolve(path, one_file=True))
        if found.header is None or found.faults:
            raise bundle_error(found.path, found.faults)
        shapes = {name: stored.shape for name, stored in found.header.tensors.items()}
        bundle = cls(found.path, found.header, found.meta, shapes | found.shapes, found.identity)
        bundle.notes = found.notes
        for note in bundle.notes:
            warnings.warn(f"{printable(found.path)}: {note}", stacklevel=2)
        return bundle

    def get(self, key: str) -> Any:
        """Return the stored value of a schema key, or its default (None: has none).

        Raises:
            ValueError: the schema has no such key.
        """
        return schema.value(self.meta, key)

    def names(self) -> list[str]:
        """Return the tensor names in file order."""
        return list(self._stored)

    def has(self, name: str) -> bool:
        """Say whether the bundle holds a tensor of this name."""
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape as the schema writes it (torch order)."""
        self._entry(name)
        return self._shapes[name]

    def type_name(self, name: str) -> str:
        """Return the ggml type a tensor is stored in, ``F32`` for one."""
        return self._entry(name).type_name

    def encoded(self, name: str) -> quant.Encoded:
        """Return a tensor's stored bytes, for writing them again unchanged.

        Raises:
            BundleError: no such tensor, undecodable type, or the file changed since ``open``.
        """
        stored = self._entry(name)
        if name in self.unsupported:
            kind = f"{stored.type_name} (id {stored.type_id})"
            fault = f"tensor {printable(name)} has the type {kind}, which cannot be decoded"
            raise bundle_error(self.path, [fault])
        with _opened(self.path) as (file, identity):
            self._check_unchanged(identity)
            file.seek(stored.start)
            data = np.fromfile(file, np.uint8, stored.n_bytes or 0)
            self._check_unchanged(_identity(os.fstat(file.fileno())))
        shape = self._shapes[name]
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        return quant.Encoded(data.reshape(rows, -1), shape, GGMLQuantizationType(stored.type_id))

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor as float32 that owns its memory, of ``shape(name)``.

        Raises:
            BundleError: as ``encoded``, or a value is NaN or infinite.
        """
        values = quant.decode(self.encoded(name))
        if not (
            np.isfinite(values.min()) and np.isfinite(values.max())
        ):  # either is NaN if any value is
            raise bundle_error(
                self.path, [f"tensor {printable(name)} holds NaN or infinite values"]
            )
        return torch.from_numpy(values)

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole file, hexadecimal; computed once.

        Raises:
            BundleError: the file changed since ``open``.
        """
        if not self._sha256:
            with _opened(self.path) as (file, identity):
                self._check_unchanged(identity)
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self._sha256

    def _entry(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise bundle_error(self.path, [f"has no tensor {printable(name)}"])
        return self._stored[name]

    def _check_unchanged(self, identity: tuple) -> None:
        if identity != self._identity:
            raise bundle_error(self.path, ["has changed since it was opened; open it again"])


@dataclass(frozen=True)
class Examined:
    """A file read as far as it goes.

    Attributes:
        path: The file.
        header: Its container, or None where that is broken.
        meta: Keys with checked values, or, where the container is broken, what was read before.
        shapes: Shapes of the tensors the schema knows, as it writes them.
        faults: Everything wrong with it; none if it is a bundle.
        notes: Harmless oddities.
        identity: Tells whether the file is still the same.
    """

    path: Path
    header: Header | None
    meta: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    identity: tuple


def examine(path: Path) -> Examined:
    """Read and check all of a file but the weights' values, and say everything that is wrong.

    Raises:
        BundleError: it cannot be opened at all.
    """
    with _opened(path) as (file, identity):
        size = os.fstat(file.fileno()).st_size
        values: dict[str, Any] = {}
        try:
            header = parse_header(file, size, values)
        except BundleError as error:
            return Examined(path, None, values, {}, (str(error),), (), identity)
        meta, faults = check_meta(header.values)
        faults = [*header.faults, *faults]
        shapes: dict[str, tuple[int, ...]] = {}
        if meta.get("general.architecture") == "jepa":
            stored = {name: tensor.shape for name, tensor in header.tensors.items()}
            shapes, tensor_errors = tensor_faults(meta, stored)
            faults += tensor_errors + _operand_faults(header.tensors, shapes)
        notes = () if faults else tuple(_trailing(file, header, size))
    return Examined(path, header, meta, shapes, tuple(faults), notes, identity)


def find_bundle(name_or_path: str | Path) -> Path:
    """Return the path of a bundle: an existing file, one on the hub, or one that ships with us.

    Raises:
        BundleError: none exists; the text lists the names in ``jepa_wm.data``.
        ConfigError: a name on the hub that cannot be fetched.
    """
    if parse(name_or_path) is not None:
        return resolve(name_or_path, one_file=True)
    text = str(name_or_path)
    shipped = importlib.resources.files("jepa_wm.data")
    names = sorted(entry.name for entry in shipped.iterdir() if entry.name.endswith(".gguf"))
    expanded = os.path.expanduser(text)
    if text and os.path.exists(expanded):
        return Path(expanded)
    if text in names:
        return Path(str(shipped.joinpath(text)))
    listed = ", ".join(names) or "none"
    raise bundle_error(text or "''", [f"no such file, nor a bundled model (bundled: {listed})"])


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, tuple]]:
    """Open a regular file, with its identity; whatever prevents that is a ``BundleError``."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            raise bundle_error(path, ["is a directory, not a GGUF file"])
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise bundle_error(path, ["is no regular file"])
        file = open(path, "rb")
    except FileNotFoundError as error:
        raise bundle_error(path, ["no such file"]) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise bundle_error(path, [f"cannot be opened: {reason}"]) from error
    with file:
        yield file, _identity(os.fstat(file.fileno()))


def _identity(status: os.stat_result) -> tuple:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_decodable(stored: StoredTensor) -> bool:
    return stored.n_bytes is not None and quant.can_decode(GGMLQuantizationType(stored.type_id))


def _operand_faults(stored: Mapping[str, StoredTensor], shapes: Mapping[str, Any]) -> list[str]:
    return [
        f"tensor {name} is stored as {stored[name].type_name}, wanted F32 (no weight matrix)"
        for name in shapes
        if is_operand(name) and stored[name].type_name != "F32" and _is_decodable(stored[name])
    ]


def _trailing(file: BufferedReader, header: Header, size: int) -> Iterator[str]:
    """Yield a note where more follows the last tensor than zeros up to one alignment unit."""
    extra = size - header.end
    if extra <= 0 or any(stored.n_bytes is None for stored in header.tensors.values()):
        return  # where a size is unknown, so is the end
    file.seek(header.end)
    tail = file.read(min(extra, header.alignment))
    if extra > header.alignment or any(tail):
        yield f"{extra} bytes after the last tensor are ignored"
