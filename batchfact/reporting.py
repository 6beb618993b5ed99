"""What `batchfact report` does: scored files of one method in, an HTML page out.

It reads them once, counts every row, keeps those that the page lists, and says in words what the run's settings
were. Everything about the page itself is in `batchfact.report`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs as pafs
from msgspec import Struct

from batchfact.durations import duration
from batchfact.errors import RunFailedError, UsageError
from batchfact.input_files import open_filesystem
from batchfact.output_files import check_folder, output_kind, whole_output
from batchfact.report.figures import Plot, ranking_plot, score_plot, verdict_plot
from batchfact.report.listing import Listing, list_rows
from batchfact.report.page import Page, Section, Settings, Table, Tile, render
from batchfact.report.rows import ScoredRow
from batchfact.report.tally import CONFIDENCE, Ranked, Tally
from batchfact.reporting_metrics import measured
from batchfact.run_log import Throughput
from batchfact.scored_file import ColumnOptions, ScoredFiles, open_scored

MAX_PAGE_BYTES = 25_000_000
"""A page stays below it: browsers open that at once, and it can be sent by mail."""

_REST_BYTES = 1_000_000
"""Room for all that is not the list of summaries."""

_MAX_TABLE_ROWS = 200

_SECTIONS = (
    ("Method", "identity"),
    ("Verdict", "fold"),
    ("Columns", "columns"),
    ("Versions", "versions"),
)


class Written(Struct, frozen=True, kw_only=True):
    """What the page holds: rows in the files, rows in its list, and its size."""

    rows: int
    listed: int
    bytes: int
    warnings: tuple[str, ...] = ()


def write_report(
    given: Sequence[str], output: str | None, options: ColumnOptions, *, max_rows: int = 10_000, force: bool = False
) -> tuple[str, Written]:
    """Write a report of scored files.

    Args:
        given: a file or a folder of shards, or several of one run, or of several runs by the same method.
        output: where to; None is beside the one file or folder, with the ending `.html`.
        max_rows: of larger files evenly spaced rows are listed; all rows are counted.
        force: write over an output that exists.
    Returns: where it was written, and what it holds.
    Raises:
        UsageError: a file, a column or the output cannot be used.
        RunFailedError: a file cannot be read, or the page not written.
    """
    if max_rows < 1:
        raise UsageError(f"--max-rows must be at least 1, got {max_rows}")
    file = open_scored(given, options)
    target = output or _beside(given)
    filesystem, path = _check_output(target, file, force=force)
    html, listed = make_html(file, _title(given), max_rows)
    content = html.encode()
    try:
        with whole_output(filesystem, path) as temporary, temporary.open("wb") as stream:
            stream.write(content)
    except OSError as error:
        raise RunFailedError(f"report {target} cannot be written: {error}") from error
    return target, Written(rows=file.num_rows, listed=listed, bytes=len(content), warnings=file.warnings)


def _beside(given: Sequence[str]) -> str:
    place, query = _without_query(given[0])
    is_pattern = any(sign in place for sign in "*?[") and not Path(place).exists()
    if len(given) > 1 or is_pattern:
        raise UsageError("several files were named: say with --output what the page is to be called")
    if Path(place).name in ("", ".."):
        raise UsageError(f"{place} has no name of its own: say with --output what the page is to be called")
    # A Path would take the slashes out of a URI.
    return f"{posixpath.splitext(place.rstrip('/'))[0]}.html{query}"


def _without_query(given: str) -> tuple[str, str]:
    """A URI without what it says of its server, and that; any other path as it is."""
    place, mark, query = given.partition("?") if "://" in given else (given, "", "")
    return place, mark + query


def _title(given: Sequence[str]) -> str:
    more = f" and {len(given) - 1} more" if len(given) > 1 else ""
    place, _ = _without_query(given[0])
    return f"{Path(place).name or Path(place).resolve().name}{more}"


def make_html(file: ScoredFiles, name: str, max_rows: int) -> tuple[str, int]:
    """The page, and the number of rows that it lists."""
    tally = Tally()
    kept: list[ScoredRow] = []
    for row, usage in file.rows():
        tally.add(row, usage)
        if row.row * max_rows % file.num_rows < max_rows:  # of every so many rows one, and max_rows in all
            kept.append(row)
    listing = list_rows(kept, MAX_PAGE_BYTES - _REST_BYTES)
    page = Page(
        source=name,
        lead=_lead(file),
        notes=_notes(file),
        tiles=_tiles(tally, _throughput(file)),
        sections=_sections(file, tally),
        settings=_settings(file.metadata),
        listing=listing,
        list_notes=_list_notes(listing, file.num_rows),
    )
    return render(page), listing.num_rows


def _check_output(output: str, file: ScoredFiles, *, force: bool) -> tuple[pafs.FileSystem, str]:
    filesystem, path = open_filesystem(output)
    if os.path.realpath(path) in {os.path.realpath(shard.path) for shard in file.shards}:
        raise UsageError(f"report {output} is the scored file itself; name another output")
    kind = output_kind(filesystem, path, output)
    if kind == pafs.FileType.Directory:
        raise UsageError(f"report {output} is a folder; name a file in it, such as {output.rstrip('/')}/report.html")
    if kind != pafs.FileType.NotFound and not force:
        raise UsageError(f"report {output} exists already; name another, or write over it with --force")
    if isinstance(filesystem, pafs.LocalFileSystem):
        check_folder(Path(path).parent, output)
    return filesystem, path


# What the page says


def _lead(file: ScoredFiles) -> str:
    identity, fold = file.metadata.get("identity", {}), file.metadata.get("fold", {})
    words = [identity.get("model"), identity.get("paradigm")]
    words += ["with reasoning" if identity.get("reasoning") else None]
    words += [f"threshold {fold['threshold']:.3g}" if "threshold" in fold else None]
    words += [f"{file.num_rows:,} rows"]
    words += [f"{len(file.shards):,} files"] if len(file.shards) > 1 else []
    return " · ".join(str(word) for word in words if word)


def _notes(file: ScoredFiles) -> tuple[str, ...]:
    notes = [f"{warning[0].upper()}{warning[1:]}." for warning in file.warnings]
    if file.metadata.get("early_exit"):
        notes.append("Scored with --early-exit: labels are final, but scores are only upper bounds.")
    return tuple(notes)


def _tiles(tally: Tally, throughput: Sequence[Throughput]) -> tuple[Tile, ...]:
    usage = tally.usage
    unsupported = tally.findings["inconsistent"]
    gold = tally.gold.total()
    beside = f"; {_percent(tally.gold['inconsistent'], gold)} by gold label" if gold else ""
    return (
        Tile("Summaries", f"{tally.rows:,}"),
        Tile("Scored", _percent(tally.scored, tally.rows), f"{tally.rows - tally.scored:,} without a verdict"),
        Tile("Inconsistent", _percent(tally.labels["inconsistent"], tally.scored), f"of those scored{beside}"),
        Tile("Findings", f"{tally.findings.total():,}", f"{unsupported:,} not supported"),
        Tile("Prompt tokens", f"{usage.prompt:,}", f"{_percent(usage.cached, usage.prompt)} from the prefix cache"),
        Tile(
            "Tokens a summary", f"{usage.prompt / tally.rows:,.0f}", f"and {usage.output / tally.rows:,.1f} generated"
        ),
        *_speed_tiles(throughput),
    )


def _throughput(file: ScoredFiles) -> tuple[Throughput, ...]:
    """What each run took that the files are of: shards of one run say it alike."""
    runs = {
        msgspec.json.encode([each.get("inputs"), each["throughput"]]): each["throughput"]
        for each in file.descriptions
        if each.get("throughput")
    }
    return tuple(msgspec.convert(each, Throughput) for each in runs.values())


def _speed_tiles(throughput: Sequence[Throughput]) -> tuple[Tile, ...]:
    """What the runs took; nothing where no file says it."""
    if not throughput:
        return ()
    scoring_s, duration_s = sum(each.scoring_s for each in throughput), sum(each.duration_s for each in throughput)
    pairs, runs = sum(each.rows for each in throughput), sum(each.runs for each in throughput)
    tokens = sum(each.prompt_tokens for each in throughput)
    over = f", over {runs} runs" if runs > 1 else ""
    return (
        Tile("Pairs a second", f"{pairs / scoring_s:,.2f}", f"{pairs:,} pairs, start-up left out{over}"),
        Tile("Time", duration(duration_s), f"{duration(scoring_s)} of it scoring"),
        Tile("Prompt tokens a second", f"{tokens / scoring_s:,.0f}", "cached ones included"),
    )


def _sections(file: ScoredFiles, tally: Tally) -> tuple[Section, ...]:
    ranking = tally.ranking()
    tables = (_ranking_table(ranking),) if ranking else ()
    overview = Section(title="Overview", plots=_plots(file, tally, ranking), tables=tables)
    return (overview, measured(file)) if tally.gold else (overview,)


def _plots(file: ScoredFiles, tally: Tally, ranking: Sequence[Ranked]) -> tuple[Plot, ...]:
    plots = [verdict_plot(tally.labels, tally.statuses)]
    if tally.scores:
        plots.append(score_plot(tally.scores, file.metadata.get("fold", {}).get("threshold")))
    if any(each.share is not None for each in ranking):
        plots.append(ranking_plot(ranking))
    return tuple(plots)


def _ranking_table(ranking: Sequence[Ranked]) -> Table:
    rows = []
    for each in ranking[:_MAX_TABLE_ROWS]:
        share = f"{each.share.value:.1%}" if each.share else "–"
        interval = f"{each.share.low:.1%} to {each.share.high:.1%}" if each.share else "–"
        gold = "–" if each.gold_share is None else f"{each.gold_share:.1%}"
        rows.append((each.name, f"{each.rows:,}", f"{each.scored:,}", share, interval, gold))
    columns = ("summariser", "summaries", "scored", "consistent", f"{CONFIDENCE:.0%} interval", "gold consistent")
    has_gold = any(each.gold_share is not None for each in ranking)
    width = len(columns) if has_gold else len(columns) - 1
    note = f"Of the scored summaries, with Wilson's {CONFIDENCE:.0%} interval."
    if len(ranking) > len(rows):
        note += f" The first {len(rows)} of {len(ranking):,} summarisers."
    return Table(
        title="Summarisers", columns=columns[:width], rows=tuple(row[:width] for row in rows), note=note, is_folded=True
    )


def _list_notes(listing: Listing, num_rows: int) -> tuple[str, ...]:
    notes = []
    if listing.num_rows < num_rows:
        notes.append(
            f"The list holds {listing.num_rows:,} of the {num_rows:,} rows, evenly spaced. The figures above count all."
        )
    if listing.num_shortened:
        notes.append(
            f"{listing.num_shortened:,} of {listing.num_documents:,} documents are shortened to about "
            f"{listing.document_chars:,} characters, to their evidence or their beginning, to keep this page small."
        )
    return tuple(notes)


def _settings(metadata: Mapping[str, Any]) -> tuple[Settings, ...]:
    groups = [Settings(title, _flat(metadata[key])) for title, key in _SECTIONS if metadata.get(key)]
    inputs = tuple(("input", str(each)) for each in metadata.get("inputs", ()))
    return (*groups, *([Settings("Input", inputs)] if inputs else []))


def _flat(section: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Settings by name; a group within a group becomes one of several lines, and what is not set is left out."""
    return tuple(
        (name.replace("_", " "), _shown(value)) for name, value in section.items() if value is not None and value != {}
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"
