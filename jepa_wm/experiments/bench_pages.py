"""A benchmark's pages: Markdown beside its pictures, and one HTML file that carries everything."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jepa_wm.experiments.bench_tables import Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1c1f; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #d5d9de;
  vertical-align: top; }
img, video { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
figcaption, .note { color: #6b7178; font-size: 0.85rem; }
pre { white-space: pre-wrap; font-size: 0.8rem; }
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
class Page:
    """What a report holds.

    Attributes:
        title: Of the whole.
        facts: Name -> text: protocol, machine, versions.
        tables: In order; those without rows are shown by their note.
        pictures: Figures.
        films: Videos of chosen episodes.
        failures: Cell -> error.
    """

    title: str
    facts: Mapping[str, str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    films: Sequence[Picture]
    failures: Mapping[str, str]


def markdown(page: Page, folder: Path) -> str:
    """Return the page as Markdown, its pictures linked relative to ``folder``."""
    lines = [f"# {page.title}", ""]
    lines += [f"* **{_md(name)}**: {_md(text)}" for name, text in page.facts.items()]
    lines += [f"* **failed** {_md(cell)}: {_md(error)}" for cell, error in page.failures.items()]
    for table in page.tables:
        lines += ["", f"## {_md(table.title)}", ""]
        if table.rows:
            rule = ["---"] * len(table.head)
            rows = [list(map(_md, row)) for row in (table.head, *table.rows)]
            lines += [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
        lines += ["", _md(table.note)] if table.note else []
    lines += ["", "## Figures"] if page.pictures else []
    for picture in (*page.pictures, *page.films):
        place = picture.path.relative_to(folder).as_posix()
        mark = "!" if picture.path.suffix in (".png", ".gif") else ""
        lines += ["", f"{mark}[{_md(picture.caption)}]({place})"]
    return "\n".join(lines) + "\n"


def html_page(page: Page) -> str:
    """Return the page as one HTML document that needs nothing else: no network, no script."""
    parts = [f"<h1>{html.escape(page.title)}</h1>", "<table>"]
    parts += [
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in page.facts.items()
    ]
    parts.append("</table>")
    if page.failures:
        rows = [f"{cell}: {error}" for cell, error in page.failures.items()]
        parts += ["<h2>Failed</h2>", f"<pre>{html.escape(chr(10).join(rows))}</pre>"]
    parts += [_html_table(table) for table in page.tables]
    parts += ["<h2>Figures</h2>"] if page.pictures else []
    parts += [_html_picture(picture) for picture in page.pictures]
    parts += ["<h2>Episodes</h2>"] if page.films else []
    parts += [_html_picture(picture) for picture in page.films]
    head = f'<meta charset="utf-8"><title>{html.escape(page.title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n" + "\n".join(
        [*parts, "</body></html>\n"]
    )


def _md(text: str) -> str:
    """Keep a name from being read as markup or as two cells."""
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _html_table(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = ""
    if table.rows:
        rows = "".join(line(row, "td") for row in table.rows)
        body = f"<table>{line(table.head, 'th')}{rows}</table>"
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f"<h2>{html.escape(table.title)}</h2>{body}{note}"


def _html_picture(picture: Picture) -> str:
    kind = TYPES[picture.path.suffix]
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = html.escape(picture.caption)
    source = f"data:{kind};base64,{data}"
    if kind.startswith("video"):
        body = f'<video controls muted loop src="{source}"></video>'
    else:
        body = f'<img alt="{caption}" src="{source}">'
    return f"<figure>{body}<figcaption>{caption}</figcaption></figure>"
