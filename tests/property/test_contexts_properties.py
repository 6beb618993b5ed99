"""Whatever is shown of a document fits the model, by its own tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchfact.assembly import Assembler
from batchfact.config import Identity, LongDocuments
from batchfact.paradigms.contexts import DocumentContext, reserved_tokens
from batchfact.preparation import make_contexts, make_counters
from batchfact.prompts.loader import PromptBook, PromptTemplate
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

FAMILIES = {"byte-level": byte_level, "line-breaking": line_breaking, "sentencepiece": sentencepiece}
PIECES = [
    "The mayor of Paris said so. ",
    "It's late!\n",
    "北京是首都。",
    "Café, naïve ",
    "\n\n",
    "  - one\n",
    "x" * 30,
    "🙂 ",
]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join)
TEMPLATE = '+++\ncue = "Answer:"\nconsistent = "no"\n+++\nDocument:\n${document}\n\nSentence:\n${window}\n\nIs it so?'


def setting(
    family: str, mode: LongDocuments, limit: int, text: str
) -> tuple[Assembler, PromptTemplate, DocumentContext]:
    tokenizer = FAMILIES[family]()
    contexts = make_contexts(Identity(long_documents=mode, align_sentences=4), make_counters(tokenizer), limit)
    template = PromptBook(tokenizer.render_chat, texts={"sent_nli": TEMPLATE})["sent_nli"]
    return Assembler(tokenizer), template, contexts.of(text)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["auto", "align", "chunk"])
@settings(deadline=None, max_examples=40)
@given(text=TEXTS, window=TEXTS.filter(lambda each: len(each) < 200), limit=st.integers(256, 900))
def test_every_excerpt_fits_and_a_document_that_fits_is_whole(
    family: str, mode: LongDocuments, text: str, window: str, limit: int
) -> None:
    assembler, template, document = setting(family, mode, limit, text)

    def size(shown: str) -> int:
        return len(assembler.assemble(template.fill(document=shown, window=window))) + reserved_tokens(template)

    excerpts = document.excerpts(template, target=window, window=window)

    assert all(size(excerpt.text) <= limit for excerpt in excerpts)
    assert all(excerpt.text.strip() in text for excerpt in excerpts if excerpt.chunk is not None)
    if mode != "align" and text.strip() and size(text) <= limit:
        assert [(excerpt.text, excerpt.spans) for excerpt in excerpts] == [(text, ())]
    if mode == "chunk" and excerpts and excerpts[0].spans:
        covered = {at for excerpt in excerpts for span in excerpt.spans for at in range(span.start, span.end)}
        assert all(at in covered for at, character in enumerate(text) if not character.isspace())
    for excerpt in excerpts:
        assert list(excerpt.spans) == sorted(excerpt.spans, key=lambda span: span.start)
        assert all(text[span.start : span.end] in excerpt.text for span in excerpt.spans)
