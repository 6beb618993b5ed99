"""matplotlib figures as SVG that stands inside the page and follows its light or dark colours.

A Figure, or the SVG that matplotlib wrote of one, flows in; an `<svg>` element flows out, without what only a file of
its own needs, with ids that are its own on the page and the page's colour names in place of fixed colours.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS: Mapping[str, str] = {
    "#000000": "--ink",
    "#ffffff": "--surface",
    "#5f6b7a": "--muted",
    "#d5dae1": "--line",
    "#1d6fb8": "--consistent",
    "#c2410c": "--inconsistent",
    "#8a6d1a": "--unknown",
    "#5b4fc7": "--accent",
}
"""Colours that figures draw with, and the page's name for each; any other colour stays as it is."""

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_DROPPED = {f"{{{_SVG}}}{name}" for name in ("metadata", "style", "script", "foreignObject")}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
"""What no XML may hold, or no reader can see; names from the user's columns may."""
_POINT = re.compile(r"(\d+(?:\.\d+)?)pt")

ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _XLINK)

_SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and the page's font draws it
    "svg.hashsalt": "batchfact",  # equal figures give equal files
    "text.parse_math": False,  # a `$` in a summariser's name is no formula
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5f6b7a",
    "axes.grid.axis": "x",
    "grid.color": "#d5dae1",
    "grid.linewidth": 0.8,
}


@contextlib.contextmanager
def drawing(style: Mapping[str, Any] | None = None) -> Iterator[None]:
    """A block, or a function, in which figures get the page's settings, with `style` for what those leave open."""
    with mpl.rc_context({**(style or {}), **_SETTINGS}):
        yield


def draw(figure: Figure) -> str:
    """The figure as an SVG document; to be called inside `drawing`, where the figure was made."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser draws the text with fonts of its own, so a character that matplotlib's font lacks is no loss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _CONTROL.sub("\ufffd", buffer.getvalue())


def inline_svg(svg: str, prefix: str, description: str) -> str:
    """An SVG document as an element for the page.

    Args:
        svg: as matplotlib writes it.
        prefix: put before all ids, so that two figures on a page share none.
        description: what a screen reader says in place of the picture.
    Raises: xml.etree.ElementTree.ParseError where it is no XML.
    """
    root = ET.fromstring(svg)  # noqa: S314  # our own plotting library's output, not a user's file
    for parent in list(root.iter()):
        for child in [each for each in parent if each.tag in _DROPPED]:
            parent.remove(child)
    for element in root.iter():
        _rename(element, prefix)
        for name, value in element.attrib.items():
            element.set(name, _recoloured(value))
    for side in ("width", "height"):
        root.set(side, _POINT.sub(r"\1", root.get(side, "")))
    root.set("role", "img")
    root.set("aria-label", description)
    return ET.tostring(root, encoding="unicode")


def _rename(element: ET.Element, prefix: str) -> None:
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, prefix + value)
        elif name == f"{{{_XLINK}}}href" and value.startswith("#"):
            element.set(name, f"#{prefix}{value[1:]}")
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{prefix}"))


def _recoloured(value: str) -> str:
    for colour, name in COLOURS.items():
        value = value.replace(colour, f"var({name})")
    return value
