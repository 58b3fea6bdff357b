"""Write named vectors to .npy, .json or .csv as they come; no more than one is held.

The three hold the same: ``.npy`` float32 [count,...] in order, with the names in a second file
beside it; ``.json`` one document; ``.csv`` one row a vector, or one row a token.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jepa_wm.errors import ConfigError

SUFFIXES = (".npy", ".json", ".csv")


class Table(Protocol):
    """An open table."""

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        """Append one result, float32 [D] or [N,D].

        Raises:
            ConfigError: its shape is not that of those before, where the format needs that.
        """


def require_suffix(path: Path) -> str:
    """Return the suffix that says the format.

    Raises:
        ConfigError: it is not one of ``SUFFIXES``.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: the name must end in {', '.join(SUFFIXES)}")
    return path.suffix.lower()


def names_path(path: Path) -> Path:
    """Return where the names of an ``.npy`` table lie: ``x.npy.json``."""
    return path.with_name(path.name + ".json")


@contextmanager
def npy_table(path: Path, names: Path, about: Mapping[str, Any]) -> Iterator[Table]:
    """Open an ``.npy`` table at ``path`` and its names, with what it is about, at ``names``."""
    with open(path, "wb") as file, open(names, "w", encoding="utf-8") as text:
        table = _Npy(file, _Json(text, about, "names"))
        yield table
        table.finish()


@contextmanager
def text_table(path: Path, suffix: str, about: Mapping[str, Any]) -> Iterator[Table]:
    """Open a ``.json`` or ``.csv`` table at ``path``; what it is about goes into the former."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        if suffix == ".csv":
            yield _Csv(file)
        else:
            document = _Json(file, about, "embeddings")
            yield document
            document.finish()


class _Npy:
    def __init__(self, file: IO[bytes], names: "_Json") -> None:
        self.file, self.names = file, names
        self.shape: tuple[int, ...] | None = None
        self.count = self.start = 0

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        if self.shape is None:
            self.shape = values.shape
            self._header()
            self.start = self.file.tell()
        if values.shape != self.shape:
            raise ConfigError(
                f"{name}: gives {list(values.shape)}, those before gave {list(self.shape)}, which "
                "one .npy cannot hold; write .json, or take a fixed number of frames"
            )
        self.file.write(np.ascontiguousarray(values, "<f4").tobytes())
        self.names.entry(name)
        self.count += 1

    def finish(self) -> None:
        self.file.seek(0)
        self._header()  # numpy leaves room in it for a longer first axis
        assert self.count == 0 or self.file.tell() == self.start
        self.names.finish()

    def _header(self) -> None:
        shape = (self.count, *(self.shape or ()))
        np.lib.format.write_array_header_1_0(
            self.file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )


class _Json:
    """A document whose last field is a list that grows."""

    def __init__(self, file: IO[str], about: Mapping[str, Any], field: str) -> None:
        self.file, self.before = file, "\n"
        head = json.dumps(dict(about), indent=1).removesuffix("\n}")
        self.file.write(f"{head},\n {json.dumps(field)}: [")

    def entry(self, found: Any) -> None:
        self.file.write(f"{self.before}  {json.dumps(found)}")
        self.before = ",\n"

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        self.entry({"name": name, "values": _shortest(values)})

    def finish(self) -> None:
        self.file.write("\n ]\n}\n")


class _Csv:
    def __init__(self, file: IO[str]) -> None:
        self.rows, self.width = csv.writer(file), 0

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        tokens = values if values.ndim == 2 else values[None]
        lead = ["name", "token"][: values.ndim]
        if not self.width:
            self.width = tokens.shape[1]
            self.rows.writerow([*lead, *range(self.width)])
        for index, token in enumerate(tokens):
            self.rows.writerow([name, index][: values.ndim] + _shortest(token))


def _shortest(values: NDArray[np.float32]) -> list[Any]:
    """Return numbers that print with as few digits as bring the float32 back."""
    if values.ndim > 1:
        return [_shortest(row) for row in values]
    return [float(str(value)) for value in values]
