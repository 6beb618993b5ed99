"""The report's page: what it says, and its HTML.

A `Page` flows in; one HTML document flows out that needs no other file and asks nothing of a network. Data reach it in
two ways only: text that the template engine escapes, and JSON that the page's script puts on the screen as text.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from msgspec import Struct
from msgspec.structs import replace

from batchfact import __version__
from batchfact.report.figures import Plot
from batchfact.report.listing import Listing
from batchfact.report.svg import inline_svg

_SCRIPTS = ("spans.js", "filters.js", "detail.js", "list.js", "start.js")


class Tile(Struct, frozen=True):
    """One figure of the overview."""

    name: str
    value: str
    note: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """A table as it is shown: each row's first cell names it. Numbers are formatted already."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_folded: bool = False


class Section(Struct, frozen=True, kw_only=True):
    """A titled part of the page: its open tables, its figures, and its folded tables."""

    title: str
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


class Settings(Struct, frozen=True):
    """A group of settings, by name."""

    title: str
    settings: tuple[tuple[str, str], ...]


class Page(Struct, frozen=True, kw_only=True):
    """All that the page shows. `lead` is the line below the title, `tiles` stand at the head of the first section.

    `list_notes` stand above the list of summaries.
    """

    source: str
    lead: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    settings: tuple[Settings, ...]
    listing: Listing
    notes: tuple[str, ...] = ()
    list_notes: tuple[str, ...] = ()


def render(page: Page) -> str:
    """The page as HTML."""
    css, script = _asset("page.css"), "\n".join(map(_asset, _SCRIPTS))
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(_asset("page.html")).render(
        page=replace(page, sections=_inlined(page.sections)),
        version=__version__,
        policy=content_policy(css, script),
        css=css,
        script=script,
    )


def content_policy(css: str, script: str) -> str:
    """The Content-Security-Policy: nothing is loaded, and only this style sheet and this script, by their hashes, run.

    Style attributes are let through, because SVG by matplotlib is drawn with them.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src-elem '{_digest(css)}'",
            "style-src-attr 'unsafe-inline'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _inlined(sections: Sequence[Section]) -> tuple[Section, ...]:
    numbers = itertools.count(1)
    return tuple(
        replace(section, plots=tuple(_inline(plot, next(numbers)) for plot in section.plots)) for section in sections
    )


def _inline(plot: Plot, number: int) -> Plot:
    return replace(plot, svg=inline_svg(plot.svg, f"plot{number}-", plot.description))


def _asset(name: str) -> str:
    return files("batchfact.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
