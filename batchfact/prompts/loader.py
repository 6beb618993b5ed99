"""Template files become prompts for one model.

Template texts, a chat renderer and the label words flow in; compiled templates, whose `fill` gives a Prompt, and the
files' digests flow out. The module knows neither tokens nor paradigms' steps: it knows which fields each template
must have, and that what fills them is data.

A template file is a TOML header between two lines of `+++`, then the text of the user's turn with `string.Template`
placeholders (`${document}`; a dollar sign is `$$`). The header is no part of the prompt:

    cue         what opens the model's own reply (`Answer:`)
    consistent  "yes" or "no": which answer means that nothing is wrong; absent where no label is asked for
    answer_cue  reasoning only: what follows the reasoning and asks for the label
    stop        reasoning only: where the reasoning ends, should the model go on to the answer by itself
    rating      true where a number from 1 to 5 is asked for in place of Yes or No
    end         where free text ends, should the model go on to another example by itself

A body may open with `${demonstrations}`: the place of the few-shot examples, which is empty without them. An example is
the body behind that place, a line break, the cue, and its answer.
"""

from __future__ import annotations

import hashlib
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from batchfact.config import Identity
from batchfact.errors import UsageError
from batchfact.records import Data, Message, Prompt, Segment, Template

ChatRenderer = Callable[[Sequence[Message]], str | None]
PromptVariant = Literal["full", "short"]

NLI_FIELDS = frozenset({"document", "window"})
CONTEXT_FIELDS = NLI_FIELDS | {"context"}
QG_FIELDS = frozenset({"summary", "window"})
QA_FIELDS = frozenset({"document", "question", "entity"})

LABEL_ONLY_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "summ_nli": NLI_FIELDS,
        "sent_nli": NLI_FIELDS,
        "sent_nli_preceding": CONTEXT_FIELDS,
        "sent_nli_summary": CONTEXT_FIELDS,
        "qg": QG_FIELDS,
        "qa": QA_FIELDS,
        "summ_nli_rating": NLI_FIELDS,
        "sent_nli_rating": NLI_FIELDS,
        "sent_nli_preceding_rating": CONTEXT_FIELDS,
        "sent_nli_summary_rating": CONTEXT_FIELDS,
    }
)
INSTRUCTIONS = (1, 2, 3)
"""Chen 2023, Table 3."""
CHEN_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {f"{name}_{number}": NLI_FIELDS for name in ("vanilla", "cot", "sbs") for number in INSTRUCTIONS}
)
FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **LABEL_ONLY_FIELDS,
        **{f"{name}_reasoning": fields for name, fields in LABEL_ONLY_FIELDS.items()},
        **CHEN_FIELDS,
    }
)
"""The fields of every template; the paradigms fill exactly these."""

DEMONSTRATIONS = "demonstrations"
"""The place of the few-shot examples; no field, because it holds segments of ours and of the user's."""
RATINGS = ("1", "2", "3", "4", "5")

FENCE = "+++\n"
# Private-use characters: no template of ours holds them, and no chat template touches them.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of a template file; see the module's docstring."""

    cue: str
    consistent: Literal["yes", "no"] | None = None
    answer_cue: str | None = None
    stop: tuple[str, ...] = ()
    rating: bool = False
    end: tuple[str, ...] = ()


class Slot(Struct, frozen=True):
    """A place in a template that data fills."""

    field: str


class PromptTemplate(Struct, frozen=True, kw_only=True):
    """One template, compiled for one model: its chat markers, label words and cue are in place.

    `labels` holds the label words, the one that means consistent first, or the ratings in rising order; it is empty
    where text is asked for. `consistent` says which answer means that nothing is wrong. `answer_cue` follows a
    reasoning of at most `reasoning_tokens` and asks for the label; None outside reasoning templates. `parses` has the
    label read from free text, which ends before one of `end`. `demonstrations` stand where the body has their place.
    """

    name: str
    parts: tuple[Template | Slot, ...]
    labels: tuple[str, ...] = ()
    answer_cue: Template | None = None
    stop: tuple[str, ...] = ()
    reasoning_tokens: int = 0
    consistent: Literal["yes", "no"] | None = None
    is_rating: bool = False
    end: tuple[str, ...] = ()
    example: tuple[Template | Slot, ...] = ()
    parses: bool = False
    demonstrations: Prompt = ()

    def fill(self, **fields: str) -> Prompt:
        """The prompt with `fields` as data segments, each stripped of outer white space.

        Raises: KeyError if a field of the template is missing.
        """
        return _filled(self.parts, fields, self.demonstrations)

    def demonstrate(self, answer: Prompt, **fields: str) -> Prompt:
        """One few-shot example: the body with `fields`, the cue and `answer`, and what sets it apart from the next."""
        return (*_filled(self.example, fields, ()), *answer, Template(".\n\n"))


def _filled(parts: Sequence[Template | Slot], fields: Mapping[str, str], demonstrations: Prompt) -> Prompt:
    segments: list[Segment] = []
    for part in parts:
        if isinstance(part, Template):
            segments.append(part)
        elif part.field == DEMONSTRATIONS:
            segments.extend(demonstrations)
        else:
            segments.append(Data(fields[part.field].strip()))
    return tuple(segments)


class PromptBook:
    """All templates, compiled once for a model.

    Args:
        render_chat: the model's chat template over messages, open for the assistant's turn; its result is None for a
            base model, which gets the plain text, a new line and the cue.
        yes, no: the label words of the model, as they follow a cue.
        texts: template name to file text; by default `shipped_texts()`.
    Raises: UsageError for a template with a field missing or unknown, a broken header, or a chat template that loses
        or repeats a part of the prompt.
    """

    def __init__(
        self,
        render_chat: ChatRenderer,
        *,
        yes: str = " Yes",
        no: str = " No",
        texts: Mapping[str, str] | None = None,
        reasoning_tokens: int = Identity().reasoning_tokens,
    ) -> None:
        texts = shipped_texts() if texts is None else texts
        words = {"yes": (yes, no), "no": (no, yes)}
        self.digests: Mapping[str, str] = MappingProxyType(
            {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        )
        templates = {name: compile_template(name, text, render_chat, words) for name, text in texts.items()}
        self._templates = {
            name: msgspec.structs.replace(template, reasoning_tokens=reasoning_tokens)
            for name, template in templates.items()
        }

    def __getitem__(self, name: str) -> PromptTemplate:
        return self._templates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)


def shipped_texts(variant: PromptVariant = "full") -> dict[str, str]:
    """Name to text of the template files in this package.

    `short` has its own files for the paradigms that models are tuned for: a tuned model knows what to do, so its prompt
    holds the document and the statement and no instructions. All other templates are those of `full`.
    """
    folder = files(__package__)
    own = {file.name for file in folder.joinpath(variant).iterdir()} if variant != "full" else set()
    places = {name: folder.joinpath(variant) if f"{name}.txt" in own else folder for name in FIELDS}
    return {name: place.joinpath(f"{name}.txt").read_text(encoding="utf-8") for name, place in places.items()}


def compile_template(
    name: str, text: str, render_chat: ChatRenderer, words: Mapping[str, tuple[str, str]]
) -> PromptTemplate:
    """Raises: UsageError, see PromptBook."""
    header, body = parse_file(name, text)
    marked = mark_fields(name, body)
    _, place, example = marked.partition(mark(DEMONSTRATIONS))
    labels = words[header.consistent] if header.consistent else ()
    return PromptTemplate(
        name=name,
        parts=split_at_marks(name, render(marked, render_chat) + header.cue),
        labels=RATINGS if header.rating else labels,
        answer_cue=Template(header.answer_cue) if header.answer_cue else None,
        stop=header.stop,
        consistent=header.consistent,
        is_rating=header.rating,
        end=header.end,
        example=split_at_marks(name, f"{example}\n{header.cue}") if place else (),
    )


def parse_file(name: str, text: str) -> tuple[Header, str]:
    """A template file's header and body.

    Raises: UsageError where the file does not open with a readable header.
    """
    opening, fence, rest = text.partition(FENCE)
    header, closing, body = rest.partition(FENCE)
    if opening or not fence or not closing:
        raise UsageError(f"prompt template {name} must open with a header between two lines of +++")
    try:
        return msgspec.convert(tomllib.loads(header), Header), body.removesuffix("\n")
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"prompt template {name} has a broken header: {error}") from error


def mark_fields(name: str, body: str) -> str:
    """The body with every placeholder replaced by a mark that chat templates leave alone.

    Raises: UsageError if the placeholders are not exactly the template's fields, or are malformed.
    """
    if name not in FIELDS:
        raise UsageError(f"prompt template {name} is unknown, there are {', '.join(FIELDS)}")
    template = string.Template(body)
    if not template.is_valid():
        raise UsageError(f"prompt template {name} holds a stray $; write $$ for a dollar sign")
    found = set(template.get_identifiers())
    fields = found - {DEMONSTRATIONS} if body.startswith(f"${{{DEMONSTRATIONS}}}") else found
    if fields != FIELDS[name]:
        missing, unknown = FIELDS[name] - fields, fields - FIELDS[name]
        raise UsageError(f"prompt template {name}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    return template.substitute({field: mark(field) for field in found})


def mark(field: str) -> str:
    return f"{MARK_OPEN}{field}{MARK_CLOSE}"


def render(body: str, render_chat: ChatRenderer) -> str:
    """The prompt up to the cue, for a chat model or a base model."""
    rendered = render_chat((Message("user", body),))
    if rendered is None:
        return body + "\n"
    # Chat formats such as Llama-2's end in `[/INST]`, and their replies begin after a space.
    return rendered if rendered[-1:].isspace() else rendered + " "


def split_at_marks(name: str, marked: str) -> tuple[Template | Slot, ...]:
    """Raises: UsageError unless every field's mark stands exactly once."""
    for field in FIELDS[name]:
        if marked.count(mark(field)) != 1:
            raise UsageError(
                f"the model's chat template loses or repeats the field {field} of prompt template {name}; "
                "use a model whose chat template keeps the user's turn as it is"
            )
    pieces = marked.replace(MARK_CLOSE, MARK_OPEN).split(MARK_OPEN)
    parts: list[Any] = [Slot(piece) if index % 2 else Template(piece) for index, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != Template(""))
