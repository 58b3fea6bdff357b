"""Write the README's table of families from test results.

Run: ``python benchmarks/family_table.py [--check]``. Runs the tests of every family and of the
published shapes, and puts what they found between the marks in README.md: layouts converted (where
all of the family's tests passed), the runtime's largest error in float32 against the float64
specification over all stages and parts, and 1 - cosine of the pooled feature in lower precision.
``--check`` prints the table only.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from marks import put

from jepa_wm.runtime import command

ROOT = Path(__file__).parent.parent
MARKS = ("<!-- families: written by benchmarks/family_table.py -->\n", "<!-- /families -->\n")
HEAD = "| family | published shape, in small | converts from | runs | fp32 | bf16 | fp16 | q8_0 |\n"


def run_tests(report: Path) -> None:
    """Run the tests of the table; what failed shows in the report."""
    tests = ["tests/test_published_shapes.py", "tests/models", "-k", "not readme"]
    arguments = ["-q", "-o", "junit_family=xunit1", "--junitxml", str(report), *tests]
    subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False)


def read(report: Path) -> tuple[list[dict[str, str]], dict[str, bool]]:
    """Return the rows the shapes' tests recorded, and which families' own tests all passed."""
    rows, seen = [], defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        passed = case.find("failure") is None and case.find("error") is None
        found = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if found:
            rows.append({**found, "passed": "yes" if passed else "NO"})
        module = case.get("classname", "").rsplit(".", 1)[-1].removeprefix("test_")
        seen[module].append(passed)
    return rows, {module: all(results) for module, results in seen.items()}


def table(rows: Sequence[Mapping[str, str]], converts: Mapping[str, bool]) -> str:
    """Return the table in Markdown."""
    lines = [HEAD, "|---|---|---|---|---|---|---|---|\n"]
    for row in rows:
        family = row["family"]
        layouts = row["layouts"] if converts.get(family, False) else "FAILS"
        figures = " | ".join(f"{float(row[name]):.0e}" for name in ("fp32", "bf16", "fp16", "q8_0"))
        lines.append(f"| `{family}` | {row['size']} | {layouts} | {row['passed']} | {figures} |\n")
    return "".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tests and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="print the table, write nothing")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run_tests(report)
        new = table(*read(report))
    print(new)
    if not args.check:
        readme = ROOT / "README.md"
        readme.write_text(put(readme.read_text(), new, MARKS))


if __name__ == "__main__":
    command(main)
