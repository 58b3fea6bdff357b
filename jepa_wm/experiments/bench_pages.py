"""A benchmark's pages: Markdown beside its pictures, and one HTML file that carries everything."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jepa_wm.experiments.text_table import Table, printable

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1c1f; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 0.4rem; }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid #d5d9de;
  vertical-align: top; overflow-wrap: break-word; }
td { min-width: 3rem; } th { white-space: nowrap; }
figure { margin: 1.2rem 0; } img, video { max-width: 100%; height: auto; }
.films { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
.films figure { margin: 0; } .films video, .films img { width: 100%; }
figcaption, .note { color: #5a6068; font-size: 0.85rem; max-width: 60rem; }
pre { white-space: pre-wrap; font-size: 0.8rem; } summary { cursor: pointer; }
"""
TYPES = {".png": "image/png", ".mp4": "video/mp4", ".gif": "image/gif"}


@dataclass(frozen=True)
class Picture:
    """A figure or a film of a report.

    Attributes:
        path: PNG, GIF or MP4.
        caption: What it shows.
    """

    path: Path
    caption: str


@dataclass(frozen=True)
class Section:
    """What a report says of one test.

    Attributes:
        title: The test.
        tables: In order; those without rows are shown by their note, if they have one.
        pictures: Figures.
        films: Videos of chosen episodes.
    """

    title: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    films: Sequence[Picture]


@dataclass(frozen=True)
class Page:
    """What a report holds.

    Attributes:
        title: Of the whole.
        facts: Name -> lines: models, planners, machines, versions.
        failures: Cell -> error.
        sections: One a test.
        tables: What concerns no single test.
    """

    title: str
    facts: Mapping[str, Sequence[str]]
    failures: Mapping[str, str]
    sections: Sequence[Section]
    tables: Sequence[Table]


def markdown(page: Page, folder: Path) -> str:
    """Return the page as Markdown, its pictures linked relative to ``folder``."""
    lines = [f"# {_md(page.title)}", "", "All in one file: [report.html](report.html); numbers: "
             "[bench.csv](bench.csv), [bench.json](bench.json)."]  # fmt: skip
    if page.failures:
        lines += ["", "## Failed", ""]
        lines += [f"* {_md(cell)}: {_md(error)}" for cell, error in page.failures.items()]
    for section in page.sections:
        lines += ["", f"## {_md(section.title)}"]
        lines += [line for table in section.tables for line in _md_table(table)]
        for picture in (*section.pictures, *section.films):
            place = picture.path.relative_to(folder).as_posix()
            mark = "!" if picture.path.suffix in (".png", ".gif") else ""
            lines += ["", f"{mark}[{_md(picture.caption)}](<{place}>)"]
    lines += [line for table in page.tables for line in _md_table(table)]
    lines += ["", "## What ran", ""]
    lines += [f"* {_md(name)}: {_md('; '.join(told))}" for name, told in page.facts.items()]
    return "\n".join(lines) + "\n"


def html_page(page: Page) -> str:
    """Return the page as one HTML document that needs nothing else: no network, no script."""
    parts = [f"<h1>{_html(page.title)}</h1>"]
    if page.failures:
        lines = [f"{cell}: {error}" for cell, error in page.failures.items()]
        parts += ["<h2>Failed</h2>", f"<pre>{_html(chr(10).join(lines))}</pre>"]
    for section in page.sections:
        parts += [f"<h2>{_html(section.title)}</h2>"]
        parts += map(_html_table, section.tables[:1])
        parts += map(_html_picture, section.pictures)
        if section.films:
            films = "".join(map(_html_picture, section.films))
            parts += [f'<h3>Episodes</h3><div class="films">{films}</div>']
        parts += map(_html_table, section.tables[1:])
    parts += map(_html_table, page.tables)
    rows = [_html_row([name, "\n".join(told)], "td") for name, told in page.facts.items()]
    parts += ["<h2>What ran</h2>", f"<table>{''.join(rows)}</table>"]
    head = f'<meta charset="utf-8"><title>{_html(page.title)}</title><style>{STYLE}</style>'
    body = "\n".join(part for part in parts if part)
    return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n{body}\n</body></html>\n"


def _md(text: str) -> str:
    """Keep a name from being read as markup or as two cells."""
    for mark in "\\`*_<>|[]#":
        text = text.replace(mark, "\\" + mark)
    return " ".join(printable(text).split())


def _md_table(table: Table) -> list[str]:
    if not table.rows and not table.note:
        return []
    lines = ["", f"### {_md(table.title)}", ""]
    if table.rows:
        head, *rows = [list(map(_md, row)) for row in (table.head, *table.rows)]
        lines += [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return lines + (["", _md(table.note)] if table.note else [])


def _html(text: str) -> str:
    """Escape a text; its lines stay lines."""
    lines = [html.escape(printable(line)) for line in text.split("\n")]
    return "\n".join(lines)


def _html_row(cells: Sequence[str], tag: str) -> str:
    shown = [_html(cell).replace("\n", "<br>") for cell in cells]
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in shown) + "</tr>"


def _html_table(table: Table) -> str:
    if not table.rows and not table.note:
        return ""
    body = ""
    if table.rows:
        rows = "".join(_html_row(row, "td") for row in table.rows)
        body = f"<table>{_html_row(table.head, 'th')}{rows}</table>"
    if table.is_long:
        body = f"<details><summary>{len(table.rows)} rows</summary>{body}</details>"
    note = f'<p class="note">{_html(table.note)}</p>' if table.note else ""
    return f"<h3>{_html(table.title)}</h3>{body}{note}"


def _html_picture(picture: Picture) -> str:
    kind = TYPES[picture.path.suffix]
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = _html(picture.caption)
    source = f"data:{kind};base64,{data}"
    if kind.startswith("video"):
        body = f'<video controls muted loop src="{source}"></video>'
    else:
        body = f'<img alt="{caption}" src="{source}">'
    return f"<figure>{body}<figcaption>{caption}</figcaption></figure>"
