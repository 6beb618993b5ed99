"""Where sentences end: one row of the table for each kind of text that summaries are made of."""

from __future__ import annotations

import pytest

from batchfact.text.punkt import Orthography, parameters, punkt
from batchfact.text.sentences import MAX_PIECE, MAX_STOPS, sentences

# Each text is written with a bar where a sentence must end; the bar is no part of it.
TABLE = [
    # plain prose
    "He won.",
    "He won. | She lost.",
    "No full stop at the end",
    "Ok. | No. | Why?",
    "First sentence.  | Two spaces before it.",
    "  Outer white space. | Is trimmed.  ",
    # abbreviations
    "Dr. Smith met Mrs. Jones and Prof. Lee.",
    "The U.S. economy grew. | The U.K. did not.",
    "He moved to the U.S. in May.",
    "They live in the U.S. | The firm is there too.",
    "Fruit, e.g. apples, i.e. the red ones, is cheap.",
    "It begins at 5 p.m. on Friday.",
    "It begins at 5 p.m. | Natacha will pick him up.",
    "It begins at 5 p.m. Eastern time and 2 p.m. Pacific.",
    "He works at Acme Inc. in Ohio.",
    "He works at Acme Inc. | The firm is big.",
    "Roe v. Wade was decided in 1973.",
    "It fell by approx. 3 per cent vs. last year.",
    "They sell pens, paper, etc. | Business is good.",
    "He ran on Sept. 11 and Jan. 3 with Gov. Brown.",
    "See fig. 3 on pp. 4 and St. Mary's Ave. north.",
    "The dog was ill. | Mary called Max. | Tom came.",
    # initials
    "J. K. Rowling wrote it.",
    "George W. Bush and J.R.R. Tolkien met J. A. Smith.",
    "They chose plan B. | The end was near.",
    # numbers
    "It cost $3.5 million. | Shares fell 2.75 per cent.",
    "Room No. 5 is free. | He came in at no. 10 yesterday.",
    "It happened in 1999. | The war was over.",
    "He has 5. | She has 6.",
    # ellipses
    "He waited... | Then he left.",
    "Well... maybe not.",
    "Well… | I know. | No wonder…",
    "She said … nothing.",
    # question and exclamation marks
    "Really?! | No way!!! | Yes.",
    "Who came? | Nobody.",
    "Hi! | :) See you.",
    # quotation marks and brackets
    '"He left." | She stayed.',
    '"Are you in?" he asked. | "Yes."',
    "“It is over.” | Then he left.",
    "(He won.) | She lost.",
    "He won (at last!). | She lost.",
    "She said 'go.' | He went.",
    "He won [1]. | She lost.",
    # lower-cased, tokenised summaries
    '" space invaders " is the founder . | inoki has appeared .',
    "he was born in 1999 . | smith was not .",
    "roma have asked . | ayew has scored six times . | newcastle wait .",
    "roma have asked. | ayew has scored. | newcastle wait.",
    "he came in 1999. | smith came later.",
    "the u.s. team and j. k. rowling met mr. smith at 5 p.m. on friday .",
    'he left . | " i stay , " she said .',
    "`` kanye ! '' | the crowd cheered .",
    "he won `` the cup . '' | she lost .",
    # lines
    "Adam: Hi!\n|Karen: Hello.",
    "Adam: Hi\n|Karen: Hello there\n|how are you",
    "project manager: We start.\n|user interface: Good",
    "- one thing\n|- another thing\n|* a third",
    "- one thing that\n  goes on\n|- another thing",
    "- One thing that\ngoes on\n|- Another\n|Next",
    "1. First item\n|2. Second item. | It has two sentences.\n|(3) Third",
    "1) Do this.\n|2) Do that.",
    "Heading\n|The text begins here.",
    "Heading of a section\n\n|the text begins here",
    "This line of a wrapped paragraph is long and goes\non in the next one. | And here it ends.",
    "This line of a wrapped paragraph is long and ends in Dr.\nSmith, who goes on.",
    "This line of a wrapped paragraph is long and whole.\n|Here the next one begins.",
    "sales rose\n|profits fell",
    "One.\r\n\r\n|Two.\r\n|Three.",
    "One line\u2028|Another",
    # CJK
    "你好。|我很好！|真的吗？|是。",
    "他说：“好。”|“真的吗？”她问。|是。",
    "「行く。」と言った。|「はい。」|「いいえ。」",
    "終わり（です。）|次の文。",
    # punctuation alone belongs to a neighbour
    "...",
    "He won. | --- She lost.",
    "What ? ! ? | Nothing .",
]


@pytest.mark.parametrize("marked", TABLE)
def test_sentences_end_where_the_bar_is(marked: str) -> None:
    text = marked.replace("| ", "").replace("|", "")
    expected = [piece.strip() for piece in marked.split("|")]
    assert [text[span.start : span.end] for span in sentences(text)] == expected


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t\r\n\u2028 \u3000"])
def test_a_blank_text_has_no_sentence(blank: str) -> None:
    assert sentences(blank) == ()


def test_a_long_run_of_words_without_a_stop_is_cut_between_words() -> None:
    text = "word " * 2000
    spans = sentences(text)
    assert len(spans) > 1
    assert all(span.end - span.start <= MAX_PIECE for span in spans)
    assert {text[span.start : span.end].replace("word", "").strip() for span in spans} == {""}


def test_a_sentence_that_crosses_a_piece_stays_whole() -> None:
    """Pieces bound Punkt's time; they do not show in the result."""
    sentence = "The committee met on Tuesday, and Dr. Brown of the U.S. office spoke for an hour about it."
    text = " ".join([sentence] * 100)
    assert {text[span.start : span.end] for span in sentences(text)} == {sentence}


def test_text_with_more_stops_than_prose_is_cut_at_each_of_them() -> None:
    text = "ab. " * (MAX_STOPS + 1)
    assert len(sentences(text)) == MAX_STOPS + 1


def test_words_that_were_asked_for_are_not_remembered() -> None:
    """Punkt's own table would grow with every new word of a run over millions of summaries."""
    seen = punkt(lower_case=False)._params.ortho_context
    before = len(seen)
    sentences("Quuxes fell. Zyzzyvas rose in No. 5. Blorps did not.")
    assert isinstance(seen, Orthography)
    assert len(seen) == before


def test_shipped_words_are_in_the_form_that_punkt_looks_up() -> None:
    shipped = parameters()
    for word in (*shipped.abbreviations, *shipped.starters, *shipped.closing_abbreviations, *shipped.after_times):
        assert word == word.lower()
        assert not word.endswith(".")
