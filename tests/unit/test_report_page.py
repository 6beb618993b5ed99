"""The page as HTML: self-contained, strict about scripts, and whatever the data hold is text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from scipy.stats import binomtest

from batchfact.errors import UsageError
from batchfact.records import Label, Usage
from batchfact.report.figures import _axes, ranking_plot, score_plot, verdict_plot
from batchfact.report.listing import list_rows
from batchfact.report.page import Page, Section, Settings, Table, Tile, render
from batchfact.report.rows import ScoredRow
from batchfact.report.svg import draw, drawing, inline_svg
from batchfact.report.tally import Tally
from batchfact.reporting import _beside

HOSTILE = "<script>alert('$x$')</script><img src=x onerror=alert(1)>&amp; 漢字 \U0001fa94"


def page(**changes):
    row = ScoredRow(row=0, summary=HOSTILE, status="ok", document=HOSTILE, summarizer=HOSTILE, label="consistent")
    tally = Tally()
    tally.add(row, Usage())
    plots = (verdict_plot(tally.labels, tally.statuses), score_plot({}, 0.5), ranking_plot(tally.ranking()))
    table = Table(title=HOSTILE, columns=(HOSTILE,), rows=((HOSTILE,),), note=HOSTILE)
    fields = {
        "source": HOSTILE,
        "lead": HOSTILE,
        "tiles": (Tile(HOSTILE, HOSTILE, HOSTILE),),
        "sections": (
            Section(title=HOSTILE, plots=plots, tables=(table, replace(table, is_folded=True)), note=HOSTILE),
            Section(title=HOSTILE, plots=plots),
        ),
        "settings": (Settings(HOSTILE, ((HOSTILE, HOSTILE),)),),
        "listing": list_rows([row], 10_000),
        "notes": (HOSTILE,),
        "list_notes": (HOSTILE,),
    }
    return render(Page(**{**fields, **changes}))


class Elements(HTMLParser):
    """All start tags with their attributes, and the text of script and style elements."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in self.inline and self.cdata_elem:
            self.inline[self.tags[-1][0]].append(data)


def test_no_data_become_markup():
    tags = Elements(page()).tags

    assert not [tag for tag, _ in tags if tag == "img"]
    assert [attrs for tag, attrs in tags if tag == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]


def test_the_policy_lets_only_the_pages_own_script_and_style_run():
    elements = Elements(page())
    (policy,) = [attrs["content"] for tag, attrs in elements.tags if attrs.get("http-equiv")]
    digests = [
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (elements.inline["script"][-1], "".join(elements.inline["style"]))
    ]

    assert policy.startswith("default-src 'none'; ")
    assert f"script-src '{digests[0]}'" in policy and f"style-src-elem '{digests[1]}'" in policy
    assert "http" not in policy and "unsafe-eval" not in policy


def test_nothing_is_loaded_from_anywhere():
    tags = Elements(page()).tags
    links = [value for _, attrs in tags for name, value in attrs.items() if name in ("src", "href", "xlink:href")]

    assert all(link.startswith("#") for link in links)
    assert "@import" not in page() and "url(http" not in page()


def test_ids_are_used_once():
    ids = re.findall(r'\sid="([^"]+)"', page())

    assert len(ids) == len(set(ids))


def test_figures_take_the_pages_colours_and_say_what_they_show():
    plot = verdict_plot({"consistent": 3, "inconsistent": 1}, {"ok": 4, "too_long": 2})
    svg = inline_svg(plot.svg, "p-", plot.description)

    assert "var(--consistent)" in svg and "#1d6fb8" not in svg
    assert 'role="img"' in svg and "consistent 3, inconsistent 1, too long 2" in svg
    assert "<style" not in svg and "<metadata" not in svg


@pytest.mark.parametrize("name", ["$\\frac{", "a\x00b\x1b", "漢字", "x" * 500])
def test_any_summariser_name_can_be_drawn(name):
    tally = Tally()
    tally.add(ScoredRow(row=0, summary="s", status="ok", label="consistent", summarizer=name), Usage())
    plot = ranking_plot(tally.ranking())

    assert inline_svg(plot.svg, "p-", plot.description).startswith("<svg")


def test_a_control_character_in_a_figures_text_leaves_it_readable():
    with drawing():
        figure, axes = _axes(2.0)
        axes.set_yticks([0], labels=["a\x01b"])
        svg = draw(figure)

    assert "a\ufffdb" in inline_svg(svg, "p-", "a figure")


def test_the_ranking_has_wilsons_interval_and_puts_the_unscored_last():
    tally = Tally()
    good: Label = "consistent"
    bad: Label = "inconsistent"
    labels: dict[str, Sequence[Label | None]] = {"a": [good] * 3 + [bad], "b": [good] * 9 + [bad], "c": [None]}
    labels["d"] = [*labels["a"], *labels["a"]]
    for name, given in labels.items():
        for label in given:
            row = ScoredRow(row=0, summary="s", status="ok", label=label, summarizer=name, gold=bad)
            tally.add(row, Usage(10, 4, 1))
    first, larger, second, third = tally.ranking()
    interval = binomtest(9, 10).proportion_ci(0.95, method="wilson")

    assert [first.name, larger.name, second.name, third.name] == ["b", "d", "a", "c"]
    assert (first.share.value, first.share.low, first.share.high) == (0.9, interval.low, interval.high)
    assert third.share is None and third.gold_share == 0.0
    assert tally.usage == Usage(230, 92, 23)


def test_scores_are_counted_in_equal_bins_by_gold_label():
    tally = Tally()
    given: list[tuple[float | None, Label | None]] = [(0.0, None), (0.049, None), (0.05, "consistent")]
    for score, gold in [*given, (1.0, "consistent"), (None, "consistent")]:
        tally.add(ScoredRow(row=0, summary="s", status="ok", score=score, gold=gold), Usage())

    assert tally.scores["no gold label"][:2] == [2, 0]
    assert (tally.scores["consistent"][1], tally.scores["consistent"][19]) == (1, 1)
    assert sum(map(sum, tally.scores.values())) == 4


@pytest.mark.parametrize(
    ("given", "page"),
    [
        ("shards/", "shards.html"),
        ("a.b/scored.parquet", "a.b/scored.html"),
        ("s3://bucket/in.parquet?endpoint_override=host:9000", "s3://bucket/in.html?endpoint_override=host:9000"),
    ],
)
def test_the_page_is_named_after_the_one_file_or_folder(given: str, page: str):
    assert _beside([given]) == page


@pytest.mark.parametrize("given", [".", "..", "x*.parquet", "s3://bucket/*.parquet?region=eu"])
def test_what_has_no_one_name_needs_an_output(given: str):
    with pytest.raises(UsageError, match="say with --output what the page is to be called"):
        _beside([given])
