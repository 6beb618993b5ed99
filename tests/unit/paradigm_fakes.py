"""A pair, compiled prompts and a scripted engine for the paradigms' tests: no model, no loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchfact.config import Identity
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.program import Findings, answer
from batchfact.prompts.loader import PromptBook
from batchfact.records import Choose, Chosen, Data, Message, Pair, Prompt, Reply, Request, Template, Written

SURE = (-0.1, -3.0)
UNSURE = (-3.0, -0.1)


def chat(messages: Sequence[Message]) -> str:
    return "".join(f"<|{message.role}|>\n{message.content}<|end|>\n" for message in messages) + "<|assistant|>\n"


BOOK = PromptBook(chat)


def pair(summary: str, document: str = "The document.") -> Pair:
    return Pair(row=0, document=document, summary=summary, document_hash=1, text_hash=2)


class Script:
    """Answers each request by its key, and keeps what was asked; a key that is not scripted gets `SURE`."""

    def __init__(self, replies: Mapping[str, Reply] | None = None) -> None:
        self.replies = dict(replies or {})
        self.asked: dict[str, Request] = {}

    def __call__(self, request: Request) -> Reply:
        assert request.key not in self.asked, f"{request.key} was asked twice"
        self.asked[request.key] = request
        if request.key in self.replies:
            return self.replies[request.key]
        assert isinstance(request, Choose), f"{request.key} wants text and the script has none"
        return Chosen(key=request.key, logprobs=SURE)


def run(identity: Identity, asked_pair: Pair, script: Script, *, reasoning: bool = False) -> Findings:
    return answer(make_paradigm(identity, BOOK, reasoning=reasoning)(asked_pair), script)


def chosen(key: str, logprobs: tuple[float, ...]) -> Chosen:
    return Chosen(key=key, logprobs=logprobs)


def wrote(key: str, text: str, finish: str = "stop") -> Written:
    return Written(key=key, text=text, ids=tuple(range(1, len(text.split()) + 1)), finish=finish)  # type: ignore[arg-type]


def data_of(prompt: Prompt) -> list[str]:
    return [segment.text for segment in prompt if isinstance(segment, Data)]


def template_text(prompt: Prompt) -> str:
    return "|".join(segment.text for segment in prompt if isinstance(segment, Template))
