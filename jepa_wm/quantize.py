"""Store a bundle's matrices in fewer bits: ``python -m jepa_wm.quantize IN OUT TYPE``.

TYPE is one of f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0. Biases, norms and
tables stay as they are stored. Prints size and error of every tensor that changes.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.quant import FILE_TYPES
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.bundle.rewrite import Change, Recipe, Rewritten, planned_types, rewrite
from jepa_wm.runtime import command


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, quantise, print the report.

    Raises:
        BundleError: the input, the type, a choice of tensors or the output is not possible.
    """
    options = _parser().parse_args(arguments)
    bundle = Bundle.open(find_bundle(options.input))
    recipe = Recipe(options.type.lower(), tuple(options.keep), options.allow_requant)
    total = len(planned_types(bundle, recipe))
    # no bar where stderr is a file: a log keeps to lines
    with tqdm(total=total, unit="tensor", disable=None, leave=False) as bar:
        done = rewrite(
            bundle, None if options.dry_run else options.output, recipe, lambda _: bar.update()
        )
    if options.json:
        files = {"input": str(bundle.path), "output": str(options.output)}
        print(json.dumps(files | summary(recipe, done) | {"dry_run": options.dry_run}, indent=2))
    else:
        print("\n".join(lines(done, options.all)))
        print(f"{options.output}: {'not written (dry run)' if options.dry_run else 'written'}")


def summary(recipe: Recipe, done: Rewritten) -> dict[str, object]:
    """Return the report as plain data: type, sizes in bytes, ratio, one entry a tensor."""
    return {
        "type": recipe.file_type,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "ratio": done.bytes_before / done.bytes_after,
        "tensors": [asdict(change) for change in done.changes],
    }


def lines(done: Rewritten, with_unchanged: bool = False) -> list[str]:
    """Return the report as text: a row a tensor that changed, errors in per cent, and the totals.

    Args:
        done: What became of the file.
        with_unchanged: Give the tensors that stay as they are a row as well.
    """
    changed = [change for change in done.changes if change.before != change.after]
    titles = ("tensor", "shape", "type", "bytes", "rms error", "worst error")
    rows = [titles, *map(_row, done.changes if with_unchanged else changed)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    text = [
        "  ".join([*map(str.ljust, row[:3], widths[:3]), *map(str.rjust, row[3:], widths[3:])])
        for row in rows
    ]
    ratio = done.bytes_before / done.bytes_after
    n_kept = len(done.changes) - len(changed)
    return [
        *text,
        "errors: rms of the error over rms of the weights; worst over the largest weight",
        f"{len(changed)} of {len(done.changes)} tensors changed, {n_kept} stay as they are, "
        f"{done.bytes_before:,} -> {done.bytes_after:,} bytes ({ratio:.2f} times smaller)",
    ]


def _row(change: Change) -> tuple[str, ...]:
    shape = " x ".join(map(str, change.shape))
    if change.before == change.after:
        return printable(change.name), shape, change.before, f"{change.bytes_after:,}", "-", "-"
    kinds = f"{change.before} -> {change.after}"
    errors = f"{change.rms_error:.3%}", f"{change.worst_error:.3%}"
    return printable(change.name), shape, kinds, f"{change.bytes_after:,}", *errors


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.quantize", description="Store a bundle's matrices in fewer bits."
    )
    parser.add_argument("input", metavar="IN", help="a GGUF bundle, or the name of a bundled one")
    parser.add_argument("output", metavar="OUT", type=Path, help="the GGUF file to write")
    parser.add_argument("type", metavar="TYPE", help=f"one of {', '.join(FILE_TYPES)}")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="SUBSTR",
        help="leave tensors whose name holds this as they are stored (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-requant", action="store_true", help="quantise what is quantised already"
    )
    parser.add_argument("--dry-run", action="store_true", help="report, write nothing")
    parser.add_argument("--all", action="store_true", help="list unchanged tensors as well")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


if __name__ == "__main__":
    command(main)
