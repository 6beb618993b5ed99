"""The errors that reach a user, each with its exit code.

A bad row is never an exception (see `records.Rejected` and `records.Unscored`). These are the other two kinds: a wrong
configuration, found before any model loads, and a run that cannot go on, whose committed work stays.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from anyio import BrokenResourceError


class BatchfactError(Exception):
    """Base of every error of ours; its text is one or two sentences for a person."""

    exit_code = 1


class UsageError(BatchfactError):
    """A wrong option, file, column or model name: nothing was loaded or written."""

    exit_code = 2


class RunFailedError(BatchfactError):
    """The run cannot go on; what is committed stays in the journal and the text says how to resume."""


class EngineDiedError(RunFailedError):
    """The engine is gone or answers no more. Another one may be started in its place, and asked again."""


class TooManyUnscoredError(BatchfactError):
    """More rows are unscored than --max-unscored allows."""

    exit_code = 3


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'summary'?`, or nothing where no known word is near."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def root_cause(group: BaseExceptionGroup) -> BaseException:
    """The one error behind a failed task group: a broken stream between two stages is only a symptom of another's."""
    _, causes = group.split(BrokenResourceError)
    error: BaseException = causes or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
