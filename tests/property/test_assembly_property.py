"""What must hold of every prompt, whatever text the user brings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchfact.assembly import Assembler
from batchfact.engines.tokenizer import FastTokenizer
from batchfact.records import Data, Prompt, Template
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

FAMILIES = {"byte-level": byte_level, "line-breaking": line_breaking, "sentencepiece": sentencepiece}
MARKERS = {
    "byte-level": ("<|im_start|>", "<|im_end|>"),
    "line-breaking": ("<|im_start|>", "<|im_end|>"),
    "sentencepiece": ("<s>", "</s>", "<unk>"),
}

FRAGMENTS = (
    *("Yes", "no", " the", "mayor", ". ", ".", "\n", "\n\n", " ", "  ", "\t", "-", "it's", "'", "s", "2019", "é"),
    *("\u0301", "北京", "。", "🙂", "<", "|", ">", "im_end", "(", ")\n", "\r\n", "\u00a0", "\u200b"),
)
words = st.sampled_from(FRAGMENTS)
plain_text = st.lists(words, max_size=12).map("".join) | st.text(max_size=20)
template_text = st.lists(
    st.sampled_from(["Document:\n", "\n\nSentence:\n", "\nAnswer:", " ", "\n", "\n\n", "Is it so? ", '"', "Is"]),
    min_size=1,
    max_size=3,
).map("".join)


@pytest.fixture(params=FAMILIES, scope="module")
def family(request):
    return request.param


def tokenizer_of(family: str) -> FastTokenizer:
    return FAMILIES[family]()


@st.composite
def prompts(draw: st.DrawFn, *, texts: st.SearchStrategy[str], marker: str) -> Prompt:
    segments: list[Template | Data] = [Template(marker + draw(template_text))]
    for _ in range(draw(st.integers(1, 4))):
        segments += [Data(draw(texts)), Template(draw(template_text))]
    segments.append(Template(draw(st.sampled_from(["", marker, marker + "Answer:"]))))
    return tuple(segments)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_assembled_ids_equal_whole_string_ids(family, data):
    tokenizer = tokenizer_of(family)
    marker = MARKERS[family][0]
    texts = plain_text.filter(lambda text: not any(each in text for each in MARKERS[family]))
    prompt = data.draw(prompts(texts=texts, marker=marker))
    text = "".join(segment.text for segment in prompt if not isinstance(segment, tuple))
    whole = tokenizer.encode(text, special=True)
    if tokenizer.bos_id is not None and whole[:1] != [tokenizer.bos_id]:
        whole = [tokenizer.bos_id, *whole]

    assert Assembler(tokenizer).assemble(prompt) == whole


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_text_of_the_user_never_becomes_a_special_token(family, data):
    tokenizer = tokenizer_of(family)
    marker = MARKERS[family][0]
    hostile = st.lists(words | st.sampled_from(MARKERS[family]), max_size=8).map("".join)
    prompt = data.draw(prompts(texts=hostile, marker=marker))
    ours = sum(text.text.count(marker) for text in prompt if isinstance(text, Template))

    ids = Assembler(tokenizer).assemble(prompt)

    unknown = {tokenizer.encode("<unk>", special=True)[-1]} if family == "sentencepiece" else set()
    assert sum(each in tokenizer.special_ids - unknown for each in ids) == ours


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_group_gives_each_prompt_the_ids_it_would_get_alone(family, data):
    assembler = Assembler(tokenizer_of(family))
    document = Data(data.draw(plain_text))
    windows = data.draw(st.lists(plain_text, min_size=2, max_size=4))
    group = assembler.for_group()
    for window in windows:
        prompt = (Template("Document:\n"), document, Template("\n\nSentence:\n"), Data(window), Template("\nAnswer:"))
        assert group.assemble(prompt) == Assembler(tokenizer_of(family)).assemble(prompt)
