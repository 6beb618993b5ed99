"""What is fuzzed: each target takes any bytes and fails only where a promise is broken.

Their promises are those of the functions' docstrings: a result of a known form, or a UsageError.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from batchfact.errors import UsageError
from batchfact.models.registry import user_models, user_registry
from batchfact.paradigms.claims import MAX_CLAIMS, can_be_verified, parse_claims
from batchfact.run_file import NAME as RUN_NAME
from batchfact.run_file import read_run
from batchfact.run_log import NAME as LOG_NAME
from batchfact.run_log import incidents, read_log, throughput
from batchfact.settings import make_config, read_options
from batchfact.text.answers import read_answer, read_numbered, read_reasoned
from batchfact.text.chunks import chunks
from batchfact.text.sentences import sentences
from batchfact.text.windows import windows
from batchfact.watching import JobStatus, summarise

FOLDER = Path(tempfile.gettempdir()) / f"batchfact-fuzz-{os.getpid()}"
READINGS = {"consistent", "inconsistent", "unclear", "refused"}


def check_answers(content: bytes) -> None:
    """A model's free text is read as one of four things, for either question, for each number that was asked."""
    text = content.decode("utf-8", errors="replace")
    count = len(content) % 7 + 1
    assert read_answer(text, consistent="yes") in READINGS
    assert read_answer(text, consistent="no") in READINGS
    assert read_reasoned(text, ("Answer:", "Therefore"), consistent="yes") in READINGS
    numbered = read_numbered(text, count, consistent="yes")
    assert len(numbered) == count
    assert set(numbered) <= READINGS


def check_claims(content: bytes) -> None:
    """At most five claims come out, each can be verified, none is there twice, and each is in the text."""
    text = content.decode("utf-8", errors="replace")
    found = parse_claims(text)
    assert len(found) <= MAX_CLAIMS
    assert all(can_be_verified(claim) for claim in found)
    assert len({claim.question for claim in found}) == len({claim.entity for claim in found}) == len(found)


def check_sentences(content: bytes) -> None:
    """Every character that is no white space is in exactly one sentence, window and chunk."""
    text = content.decode("utf-8", errors="replace")
    spans = sentences(text)
    assert all(before.end <= after.start for before, after in itertools.pairwise(spans))
    assert sum(len(text[span.start : span.end].split()) > 0 for span in spans) == len(spans)
    covered = "".join(text[span.start : span.end] for span in spans)
    assert "".join(covered.split()) == "".join(text.split())
    for size in (1, 3):
        shown = "".join(window.text_of(text) for window in windows(text, sentences_per_window=size))
        assert "".join(shown.split()) == "".join(text.split())
    if text.strip():
        pieces = chunks(text, max_tokens=50, count_tokens=len)
        assert pieces[0].start == 0 or not text[: pieces[0].start].strip()
        assert all(after.start <= before.end for before, after in itertools.pairwise(pieces))
        assert not text[pieces[-1].end :].strip()


def check_options(content: bytes) -> None:
    """A `--config` file gives options that make a configuration, or a UsageError."""
    try:
        make_config(("in",), "out", read_options(written(content, "options.toml")))
    except UsageError:
        return


def check_registry(content: bytes) -> None:
    """The user's registry gives models, or a UsageError that names the file."""
    os.environ["BATCHFACT_CONFIG_DIR"] = str(FOLDER)
    written(content, user_registry().name)
    try:
        found = user_models()
    except UsageError as error:
        assert user_registry().name in str(error)
    else:
        assert all(name == entry.name for name, entry in found.items())


def check_journal(content: bytes) -> None:
    """run.json gives a run or a UsageError; a log gives events, whatever was cut or written over."""
    written(content, RUN_NAME)
    written(content, LOG_NAME)
    try:
        read_run(FOLDER)
    except UsageError as error:
        assert "--restart" in str(error)
    assert set(incidents(FOLDER)) == {"engine_restarts", "requests_given_up"}
    took = throughput(FOLDER)
    assert took is None or took.pairs_per_s >= 0
    status = summarise(read_log(FOLDER), journal="", output=None, rows_done=0, is_going_on=False)
    assert isinstance(status, JobStatus)


def written(content: bytes, name: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / name
    path.write_bytes(content)
    return path


TARGETS: dict[str, Callable[[bytes], None]] = {
    "answers": check_answers,
    "claims": check_claims,
    "sentences": check_sentences,
    "options": check_options,
    "registry": check_registry,
    "journal": check_journal,
}
