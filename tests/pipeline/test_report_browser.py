"""The report as a person meets it, in headless Chromium: one page, opened once, used by mouse and by keyboard."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from batchfact import reporting
from batchfact.scored_file import ColumnOptions
from tests.scored_files import finding, row, span, write_scored

pytestmark = pytest.mark.browser
expect.set_options(timeout=60_000)  # a bound for a busy machine, not a measure

HOSTILE = "<img src='https://example.org/x.png' onerror='alert(1)'></script><script>alert(2)</script><!-- & "
SOURCE = "👩‍👩‍👧 Zoe\u0301 runs a cafe\u0301 🏳️‍🌈."
DOCUMENT = SOURCE + " She sold 3 lamps 🪔 on Monday. The e\u0301clairs were sold out."
FIRST = "Zoe\u0301 👩‍👩‍👧 runs a bank 🏦."
SUMMARY = FIRST + " Four 🪔 lamps were sold. The e\u0301clairs were sold out. Nobody 🤷🏽 knows why."
LONG = "Left out. " * 4000 + "The 🪔 cost 5 €. " + "Left out too. " * 4000

ROWS = [
    row(
        DOCUMENT,
        SUMMARY,
        [
            finding(SUMMARY, FIRST, evidence=[span(DOCUMENT, SOURCE)]),
            finding(
                SUMMARY,
                "Four 🪔 lamps were sold.",
                evidence=[span(DOCUMENT, "She sold 3 lamps 🪔 on Monday.")],
                question="How many 🪔?",
                entity="Four",
                reasoning="Three, <b>not</b> four.",
            ),
            finding(SUMMARY, "The e\u0301clairs were sold out.", "consistent"),
            finding(SUMMARY, "Nobody 🤷🏽 knows why.", None),
        ],
        summarizer="bart",
        error_types=["EntE", "OutE"],
        label=0,
    ),
    row(HOSTILE, HOSTILE, [finding(HOSTILE, HOSTILE)], summarizer=HOSTILE, error_types=[], label=1),
    row(LONG, "It cost 7 €.", [finding("It cost 7 €.", "7 €", evidence=[span(LONG, "The 🪔 cost 5 €.")])],
        summarizer="t5", error_types=["EntE"], label=0),
    *(
        row("Short.", f"Number {number}.", [finding(f"Number {number}.", "Number", "consistent")],
            summarizer="t5", error_types=[], label=1)
        for number in range(117)
    ),
]  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """The report's page; at the end, what it asked for and complained of is checked."""
    monkeypatch.setattr(reporting, "MAX_PAGE_BYTES", reporting._REST_BYTES + 80_000)  # so that LONG is shortened
    scored = write_scored(tmp_path / "scored.parquet", ROWS)
    path, _ = reporting.write_report([str(scored)], None, ColumnOptions())
    complaints: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(Path(path).as_uri())
        yield page
        browser.close()
    assert complaints == []
    assert requests == [Path(path).as_uri()]


def texts(page: Page, selector: str) -> list[str]:
    """The text of each match, as it stands in the page."""
    return page.locator(selector).evaluate_all("elements => elements.map((element) => element.textContent)")


def choice(page: Page, name: str) -> Locator:
    return page.get_by_role("combobox", name=name, exact=True)


def part(text: str, place: dict[str, int]) -> str:
    return text[place["start"] : place["end"]]


def test_the_page_filters_opens_and_marks_by_mouse_and_keyboard(page: Page) -> None:
    count = page.get_by_role("status")
    rows = page.locator("button.head")

    # A page of the list at a time.
    expect(count).to_have_text("120 summaries")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Last").click()
    expect(rows).to_have_count(20)
    page.get_by_role("button", name="First").click()

    # Filters, alone and together.
    choice(page, "Label").select_option("inconsistent")
    expect(count).to_have_text("3 of 120 summaries")
    choice(page, "Error type").select_option("EntE")
    expect(count).to_have_text("2 of 120 summaries")
    choice(page, "Summariser").select_option("t5")
    expect(count).to_have_text("1 of 120 summaries")
    page.get_by_role("button", name="Reset").click()
    expect(count).to_have_text("120 summaries")
    choice(page, "Gold label").select_option("differs from the model's")
    expect(count).to_have_text("1 of 120 summaries")
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Score to").fill("0.5")
    expect(count).to_have_text("3 of 120 summaries")
    page.get_by_role("button", name="Reset").click()
    choice(page, "Order").select_option("Highest score first")
    expect(rows.first).to_contain_text("Number 0.")
    page.get_by_role("button", name="Reset").click()

    # Search: words in any order, and composed letters find decomposed ones.
    page.keyboard.press("/")
    page.keyboard.type("MONDAY café")
    expect(count).to_have_text("1 of 120 summaries")
    page.keyboard.press("Escape")
    expect(rows.first).to_be_focused()
    expect(count).to_have_text("1 of 120 summaries")

    # Opening by keyboard: what is marked is what the findings' offsets say, in Python's characters.
    page.keyboard.press("Enter")
    expect(rows.first).to_have_attribute("aria-expanded", "true")
    findings = ROWS[0]["batchfact_findings"]
    flagged = [part(SUMMARY, each) for each in findings if each["label"] == "inconsistent"]
    assert texts(page, ".summary-text mark.inconsistent") == flagged
    assert texts(page, ".summary-text mark.unknown") == ["Nobody 🤷🏽 knows why."]
    assert texts(page, ".summary-text") == [SUMMARY]
    assert texts(page, ".finding .quote") == [part(SUMMARY, each) for each in findings]

    # Evidence belongs to the finding that is chosen; reasoning is there on demand, as text.
    for index in (0, 1):
        page.locator("button.finding").nth(index).click()
        expected = [part(DOCUMENT, each) for each in findings[index]["evidence"]]
        assert texts(page, ".document-text mark.selected") == expected
    assert texts(page, ".document-text") == [DOCUMENT]
    expect(page.get_by_text("Three, <b>not</b> four.")).to_be_hidden()
    page.get_by_text("Question and reasoning").click()
    expect(page.get_by_text("Three, <b>not</b> four.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(rows.first).to_have_attribute("aria-expanded", "false")
    page.get_by_role("button", name="Reset").click()

    # A document of markup is text; j opens the next row while one is open.
    expect(rows).to_have_count(50)
    rows.nth(0).click()
    page.keyboard.press("j")
    assert texts(page, ".document-text") == [HOSTILE]
    assert texts(page, ".summary-text mark.inconsistent") == [HOSTILE]
    assert page.locator("img").count() == 0

    # A shortened document says so and keeps its evidence in place.
    page.keyboard.press("j")
    assert texts(page, ".document-text mark.selected") == ["The 🪔 cost 5 €."]
    expect(page.locator(".source .note")).to_contain_text(f"of {len(LONG):,} characters are here, around the evidence")
    expect(page).to_have_url(re.compile("#row-2$"))

    # Colours and narrow screens.
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Use dark colours").click()
    assert page.evaluate(background) != light
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(background) == light
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
