"""Say what a bundle is: ``python -m jepa_wm.info FILE [--tensors] [--json]``.

FILE is a path, a name on the hub, or the name of a bundle that ships with the package. Says what
the model can do; values the file does not store are marked as defaults. Of a broken file it prints
what can be read and everything that is wrong, and exits with 1.
"""

import argparse
import json
import math
from collections import Counter
from typing import Any

from jepa_wm.bundle.faults import bundle_error, printable
from jepa_wm.bundle.reader import Bundle, Examined, examine, find_bundle
from jepa_wm.bundle.schema import TABLE, key_for
from jepa_wm.errors import BundleError
from jepa_wm.models import WORLD_MODELS, Model, empty_model
from jepa_wm.models.masked import MaskedPredictor
from jepa_wm.runtime import command

SECTIONS = {
    "encoder": ("jepa.enc.", "jepa_wm.enc."),
    "predictor": ("jepa.pred.",),
    "head": ("jepa.head.",),
    "preprocessing": ("jepa.pre.",),
    "actions": ("jepa.pred.action_dim", "jepa_wm.action.", "jepa_wm.proprio."),
    "source": ("general.license", "general.source_url", "jepa_wm.source."),
}
"""Printed sections and the keys in them."""

_SHORT = 12  # entries of an array, and faults, shown


def describe(bundle: Bundle, with_tensors: bool = False) -> dict[str, Any]:
    """Return what ``info`` prints, as plain data.

    Args:
        bundle: An opened bundle.
        with_tensors: Add every tensor's name, shape, type and whether it can be loaded.

    Returns:
        ``file``, ``can`` (``capabilities``), ``sections`` (section to key to ``value`` and
        ``stored``), ``other`` (keys the schema does not have), ``tensors`` (count, parameters,
        count per type, the unsupported ones), ``notes``.
    """
    names = bundle.names()
    parameters = sum(math.prod(bundle.shape(name)) for name in names)
    found: dict[str, Any] = {
        "file": {
            "path": str(bundle.path),
            "bytes": bundle.path.stat().st_size,
            "sha256": bundle.sha256,
            "name": bundle.get("general.name"),
            "family": bundle.family,
            "modality": bundle.modality,
        },
        "can": capabilities(bundle),
        "sections": {title: _section(bundle, prefixes) for title, prefixes in SECTIONS.items()},
        "other": {name: _plain(v) for name, v in bundle.meta.items() if key_for(name) is None},
        "tensors": {
            "count": len(names),
            "parameters": parameters,
            "types": dict(Counter(bundle.type_name(name) for name in names)),
            "unsupported": dict(bundle.unsupported),
        },
        "notes": list(bundle.notes),
    }
    if with_tensors:
        found["tensors"]["list"] = [
            {
                "name": name,
                "shape": list(bundle.shape(name)),
                "type": bundle.type_name(name),
                "supported": name not in bundle.unsupported,
            }
            for name in names
        ]
    return found


def capabilities(bundle: Bundle) -> dict[str, str]:
    """Return what can be done with a bundle: the command or call, and with what.

    The graph is built, without weights, so this holds what loading would find out.
    """
    try:
        if bundle.unsupported:
            name, kind = next(iter(bundle.unsupported.items()))
            raise BundleError(f"tensor {printable(name)} has the type {kind}, which none can read")
        model = empty_model(bundle)
    except BundleError as error:
        return {"nothing": str(error)}
    size, frames = model.preprocess.size, bundle.get("jepa.enc.n_frames")
    what = f"images {size}x{size}"
    if model.enc.config.takes_clips:
        stills = " (a still picture is one frame)" if model.still_frames == 1 else (
            f" (a still picture is repeated {model.still_frames} times)"
        )  # fmt: skip
        what = f"clips {frames}x{size}x{size}{stills}"
    found = {"embed": f"{what}, {model.enc.config.embed_dim} numbers ({model.enc.default_pool})"}
    return found | _predictor(bundle, model) | _head(bundle, model)


def _predictor(bundle: Bundle, model: Model) -> dict[str, str]:
    kind = bundle.get("jepa.pred.kind")
    if isinstance(model.pred, MaskedPredictor):
        config = model.pred.config
        return {"predict": f"latents of hidden patches, {config.out_dim} numbers"}
    if kind in WORLD_MODELS:
        action = bundle.get("jepa.pred.action_dim")
        return {"plan": f"with actions of {action} numbers a step (jepa.pred.kind = {kind})"}
    return {}


def _head(bundle: Bundle, model: Model) -> dict[str, str]:
    if model.head is None:
        return {}
    labels = "with labels" if model.labels else "without labels"
    return {"classify": f"{bundle.get('jepa.head.n_classes')} classes, {labels}"}


def describe_broken(found: Examined) -> dict[str, Any]:
    """Return what can be said of a file that is no bundle: ``describe``'s form, and ``faults``.

    Only stored keys are listed, as they were found; what depends on them is left out.
    """
    stored = found.meta if found.header is None else found.header.values
    sections = {
        title: {
            name: {"value": _plain(value), "stored": True}
            for name, value in stored.items()
            if name.startswith(prefixes)
        }
        for title, prefixes in SECTIONS.items()
    }
    tensors = {} if found.header is None else found.header.tensors
    return {
        "file": {
            "path": str(found.path),
            "bytes": found.path.stat().st_size,
            "name": _plain(stored.get("general.name")),
            "family": _plain(stored.get("jepa.family")),
        },
        "faults": list(found.faults),
        "sections": sections,
        "other": {name: _plain(v) for name, v in stored.items() if key_for(name) is None},
        "tensors": {
            "count": len(tensors),
            "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
            "types": dict(Counter(tensor.type_name for tensor in tensors.values())),
            "unsupported": {},
        },
        "notes": [],
    }


def _section(bundle: Bundle, prefixes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    is_part = {
        "jepa.pred.": bundle.get("jepa.pred.kind"),
        "jepa.head.": bundle.get("jepa.head.kind") != "none",
    }
    rows = [name for name in TABLE if name.startswith(prefixes) and not name.endswith("*")]
    rows += [name for name in bundle.meta if name.startswith(prefixes) and name not in TABLE]
    section = {}
    for name in rows:
        is_stored = name in bundle.meta
        if not (is_stored or is_part.get(prefixes[0], True)):
            continue  # defaults of a part the file does not have; some cannot even be computed
        found = bundle.get(name)
        if is_stored or found not in (None, "", ()):  # and defaults that say nothing
            section[name] = {"value": _plain(found), "stored": is_stored}
    return section


def _plain(found: Any) -> Any:
    """Return a value JSON can hold: arrays as lists, non-finite numbers as text."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, list | tuple):
        return [_plain(entry) for entry in found]
    return str(found) if isinstance(found, float) and not math.isfinite(found) else found


def _shown(found: Any) -> str:
    if isinstance(found, list):
        more = f", ... ({len(found)} entries)" if len(found) > _SHORT else ""
        return "[" + ", ".join(_shown(entry) for entry in found[:_SHORT]) + more + "]"
    return f"{found:.6g}" if isinstance(found, float) else printable(found, 200)


def lines(found: dict[str, Any]) -> list[str]:
    """Return the text form of ``describe``; nothing in it can move a terminal's cursor."""
    text = [f"{name:12} {_shown(v)}" for name, v in found["file"].items()]
    if "faults" in found:
        text += ["", f"what is wrong: {len(found['faults'])}"]
        text += [f"  {printable(fault, 400)}" for fault in found["faults"][:_SHORT]]
        more = len(found["faults"]) - _SHORT
        text += [f"  and {more} more (--json lists all)"] if more > 0 else []
    if "can" in found:
        text += ["", "what it can do"]
        text += [f"  {name:10} {printable(what, 400)}" for name, what in found["can"].items()]
    for title, section in found["sections"].items():
        text += ["", title if section else f"{title}: none"]
        for name, entry in section.items():
            mark = "" if entry["stored"] else "  (default)"
            text.append(f"  {printable(name):32} {_shown(entry['value'])}{mark}")
    if found["other"]:
        text += ["", "keys outside the schema"]
        text += [f"  {printable(name):32} {_shown(v)}" for name, v in found["other"].items()]
    tensors = found["tensors"]
    types = ", ".join(f"{count} {name}" for name, count in tensors["types"].items())
    text += ["", f"tensors: {tensors['count']} ({types}), {tensors['parameters']:,} parameters"]
    for name, kind in tensors["unsupported"].items():
        text.append(
            f"  unsupported: {printable(name)} has the type {kind}; this bundle cannot be loaded"
        )
    for row in tensors.get("list", []):
        mark = "" if row["supported"] else "  unsupported"
        text.append(f"  {printable(row['name']):32} {row['type']:8} {row['shape']}{mark}")
    return text + [f"note: {printable(note)}" for note in found["notes"]]


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print.

    Raises:
        BundleError: the file cannot be opened or is broken; what can be read is printed first.
    """
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.info", description="Say what a bundle is."
    )
    parser.add_argument("file", help="path of a GGUF bundle, hf:// name, or name of a bundled one")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    options = parser.parse_args(arguments)
    path = find_bundle(options.file)
    examined = examine(path)
    is_broken = bool(examined.faults)
    if is_broken and not examined.meta:  # nothing of it can be read
        raise bundle_error(path, examined.faults)
    if is_broken:
        found = describe_broken(examined)
    else:
        found = describe(Bundle.open(path), options.tensors)
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))
    if is_broken:
        faults = examined.faults
        first = faults if len(faults) == 1 else [f"{len(faults)} faults, the first: {faults[0]}"]
        raise bundle_error(path, first)


if __name__ == "__main__":
    command(main)
