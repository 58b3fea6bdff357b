"""Convert a checkpoint into a GGUF bundle.

``python -m jepa_wm.convert --family lewm --src DIR --ftype f16 --out lewm.gguf``. Reads local files
only; nothing in a checkpoint is executed. Every tensor of the source is used, or skipped by name,
or the conversion is refused.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jepa_wm.bundle import schema
from jepa_wm.bundle.quant import FILE_TYPES
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.hub import parse, resolve
from jepa_wm.models import FAMILIES, empty_model
from jepa_wm.models.checkpoint import UnmatchedError, fits, open_source
from jepa_wm.models.family import Family
from jepa_wm.models.source import Source
from jepa_wm.runtime import command

LARGE = 256 << 20  # bytes of a source worth a progress bar
ALIASES = {"vjepa2_ac": "vjepa2"}  # one family; the source's predictor tells which it is


def main(argv: list[str] | None = None) -> None:
    """Parse the command line, convert, say what was written."""
    args = _parser().parse_args(argv)
    given = parse_settings(args.set) | _named(args.name)
    reading = Reading(args.entry, args.head, args.unsafe_pickle)
    print(convert(args.family, args.src, args.out, args.ftype, given, reading))


@dataclass(frozen=True)
class Reading:
    """How to read a source.

    Attributes:
        entry: Entry of the checkpoint to use if it holds several.
        head: Folder or file with a head for the model, or its name on the hub.
        unsafe_pickle: Let a pickle run the code it asks for.
    """

    entry: str | None = None
    head: str | Path | None = None
    unsafe_pickle: bool = False


def convert(
    family_name: str,
    src: str | Path,
    out: Path,
    file_type: str,
    given: Mapping[str, Any],
    reading: Reading = Reading(),
) -> str:
    """Convert ``src`` into the bundle ``out`` and return a one-line report.

    Args:
        family_name: One of ``FAMILIES`` or ``ALIASES``.
        src: Folder or file of the checkpoint, or its name on the hub.
        out: GGUF file to write; replaced only when the conversion is complete.
        file_type: One of ``quant.FILE_TYPES``.
        given: Bundle keys that the source does not state, or states wrongly.
        reading: How to read the source.

    Raises:
        ConversionError: the source is unreadable, incomplete, contradictory or not representable.
        BundleError: the result breaks the schema, or ``out`` cannot be written.
    """
    family = FAMILIES[ALIASES.get(family_name, family_name)]
    local = resolve(src)
    for path in (local, reading.head or local):
        _refuse_replacing(out, Path(path))
    source = _open(family, local, reading)
    try:
        meta, tensors = family.convert(source, given)
    except ConversionError as error:
        where = src if reading.head is None else f"{src} with the head of {reading.head}"
        raise ConversionError(f"{where}: {error}") from error
    general = {"general.name": _title(src)} | _licence(local)
    origin = {
        "jepa_wm.source.sha256": _hash(source),
        "jepa_wm.source.entry": source.entry,
    }
    meta = {**general, **meta, **origin, **given}
    write_bundle(out, meta, tensors, file_type, partial(_runs, src=src))
    used, skipped = source.counts()
    beside = f", {skipped} skipped" if skipped else ""
    return (
        f"{out}: {family.name}, {len(tensors)} tensors, {out.stat().st_size / 1e6:.1f} MB; "
        f"matched {used}/{used} required source tensors{beside}"
    )


def _refuse_replacing(out: Path, source: Path) -> None:
    """Refuse to write over a file that is read."""
    if not (os.path.isfile(out) and os.path.exists(source)):  # whatever the name: no OSError here
        return
    is_inside = source.is_dir() and out.parent.samefile(source) and out.suffix != ".gguf"
    if is_inside or out.samefile(source):
        raise ConversionError(f"{out}: is part of the source; write to another file")


def _runs(bundle: Bundle, src: str | Path) -> None:
    """Refuse a bundle that could be written but not loaded."""
    try:
        empty_model(bundle)
    except BundleError as error:
        raise ConversionError(f"{src}: {str(error).removeprefix(f'{bundle.path}: ')}") from error


def _open(family: Family, src: Path, reading: Reading) -> Source:
    """Open the source; one that is of another family is told so."""
    head = None if reading.head is None else resolve(reading.head)
    how = (reading.entry, family.default_entry, head, reading.unsafe_pickle)
    try:
        return open_source(src, family.anchors, *how)
    except UnmatchedError as error:
        like = [f.name for f in FAMILIES.values() if fits(error.names, f.anchors)]
        looks = f"it looks like {' or '.join(like)}" if like else "nor is it any other family's"
        raise ConversionError(f"{error}, as {family.name} has; {looks}") from error


def _hash(source: Source) -> str:
    """Hash the source; it is read here, which takes a while where it is large."""
    size = source.n_bytes
    with tqdm(total=size, unit="B", unit_scale=True, desc="reading", disable=size < LARGE) as bar:
        return source.sha256(bar.update)


def _title(src: str | Path) -> str:
    """Name a model by its folder or file; a link keeps its own name."""
    name = parse(src)
    if name is not None:
        return name.title
    path = Path(os.path.abspath(src))
    return path.name if path.is_dir() else path.stem


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs into typed bundle keys; the leading ``jepa.`` may be left out.

    Raises:
        ConversionError: listing every pair that is not a key of the schema or whose value does not
            fit.
    """
    given, wrong = {}, []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key if key.startswith(("general.", "jepa.", "jepa_wm.")) else f"jepa.{key}"
        row = schema.key_for(key)
        if not equals or row is None:
            near = schema.nearest(key)
            wrong.append(f"{pair!r} is not KEY=VALUE with a key of the bundle schema{near}")
            continue
        try:
            given[key] = schema.coerce(row, _typed(row.kind, text))
        except ValueError as error:
            wrong.append(f"{pair!r}: {error}")
    if wrong:
        raise ConversionError("--set " + "; ".join(wrong))
    return given


def _typed(kind: str, text: str) -> Any:
    if kind.startswith("["):
        return [_typed(kind[1:-1], part.strip()) for part in text.split(",")]
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind in ("u32", "f32"):
        return (int if kind == "u32" else float)(text)
    return text


def _named(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"general.name": name}


def _licence(src: Path) -> dict[str, Any]:
    """Read the licence from the front matter of the model card, if there is one."""
    card = (src if src.is_dir() else src.parent) / "README.md"
    if not card.is_file():
        return {}
    head = card.read_text(encoding="utf-8", errors="replace")[:4096]
    found = re.match(r"---\n(?:.*\n)*?license:[ \t]*([\w.+-]+)", head)
    return {"general.license": found[1]} if found else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.convert", description="Convert a checkpoint into a GGUF bundle."
    )
    parser.add_argument("--family", required=True, choices=sorted([*FAMILIES, *ALIASES]))
    parser.add_argument("--src", required=True, help="folder or file, or hf://OWNER/REPO[/FILE]")
    parser.add_argument("--out", required=True, type=Path, help="GGUF file to write")
    parser.add_argument(
        "--ftype", default="f32", choices=list(FILE_TYPES), help="type of the matrices"
    )
    parser.add_argument("--name", help="general.name; the folder's or file's name by default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="a bundle key the source does not state, such as enc.n_head=3 or pre.mean=0.5,0.5,0.5 "
        "(repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--entry", help="entry of the checkpoint if it holds several models, such as "
        "encoder, target_encoder or ema_encoder; the family's own choice by default",
    )  # fmt: skip
    parser.add_argument("--head", help="folder or file with a head for the model")
    parser.add_argument(
        "--unsafe-pickle", action="store_true",
        help="let a pickle run the code it asks for: only for files you trust",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    command(lambda: main(sys.argv[1:]))
