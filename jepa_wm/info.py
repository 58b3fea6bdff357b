"""Say what a bundle is: ``python -m jepa_wm.info FILE [--tensors] [--json]``.

FILE is a path or the name of a bundle that ships with the package. Values the file does not store
are marked as defaults.
"""

import argparse
import json
import math
from collections import Counter
from typing import Any

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.bundle.schema import TABLE, key_for
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

_SHORT = 12  # entries of an array shown


def describe(bundle: Bundle, with_tensors: bool = False) -> dict[str, Any]:
    """Return what ``info`` prints, as plain data.

    Args:
        bundle: An opened bundle.
        with_tensors: Add every tensor's name, shape, type and whether it can be loaded.

    Returns:
        ``file``, ``sections`` (section to key to ``value`` and ``stored``), ``other`` (keys the
        schema does not have), ``tensors`` (count, parameters, count per type, the unsupported
        ones), ``notes``.
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


def _section(bundle: Bundle, prefixes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    is_part = {
        "jepa.pred.": bundle.get("jepa.pred.kind"),
        "jepa.head.": bundle.get("jepa.head.kind") != "none",
    }
    rows = [name for name in TABLE if name.startswith(prefixes) and not name.endswith("*")]
    rows += [name for name in bundle.meta if name.startswith(prefixes) and name not in TABLE]
    section = {}
    for name in rows:
        is_stored, found = name in bundle.meta, bundle.get(name)
        # defaults that say nothing, or that belong to a part the file does not have, are left out
        if is_stored or (is_part.get(prefixes[0], True) and found not in (None, "", ())):
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
        BundleError: the file cannot be opened.
    """
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.info", description="Say what a bundle is."
    )
    parser.add_argument("file", help="path of a GGUF bundle, or the name of a bundled one")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    options = parser.parse_args(arguments)
    found = describe(Bundle.open(find_bundle(options.file)), options.tensors)
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))


if __name__ == "__main__":
    command(main)
