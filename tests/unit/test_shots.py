"""Few-shot examples: the draw, the file, and the room they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batchfact_fake import FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st

from batchfact.config import Identity
from batchfact.demonstrations import LEAST_ROOM, prepare_shots, read_demonstrations
from batchfact.errors import UsageError
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.shots import Demonstration, digest, draw, held_out, labels_of_windows, render
from batchfact.preparation import make_counters
from batchfact.prompts.loader import PromptBook
from batchfact.records import Data, Prompt, Template
from batchfact.source import open_source
from tests.unit.paradigm_fakes import BOOK, Script, data_of, pair, run

CANDIDATES = [
    Demonstration(
        document=f"Document {number}.",
        summary=f"Summary {number}.",
        label="consistent" if number % 2 else "inconsistent",
    )
    for number in range(12)
]


@given(st.integers(1, 12), st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_a_draw_is_balanced_and_depends_on_the_seed_alone(num_shots: int, seed: int, random: Any) -> None:
    drawn = draw(CANDIDATES, num_shots, seed=seed)
    shuffled = random.sample(CANDIDATES, len(CANDIDATES))

    good = sum(each.label == "consistent" for each in drawn)
    assert len(set(drawn)) == num_shots
    assert abs(2 * good - num_shots) <= 1
    assert draw(shuffled, num_shots, seed=seed) == drawn


@given(st.integers(0, 1000))
def test_a_candidate_that_is_left_out_changes_no_other_choice(seed: int) -> None:
    drawn = draw(CANDIDATES, 4, seed=seed)
    fewer = [each for each in CANDIDATES if each != drawn[0]]

    assert set(drawn[1:]) < set(draw(fewer, 4, seed=seed))


def test_seeds_change_the_choice_and_the_order() -> None:
    drawn = [draw(CANDIDATES, 2, seed=seed) for seed in range(40)]

    assert len(set(drawn)) > 20
    assert {each[0].label for each in drawn} == {"consistent", "inconsistent"}


def test_an_odd_number_of_shots_favours_no_label_for_good() -> None:
    firsts = {draw(CANDIDATES, 1, seed=seed)[0].label for seed in range(20)}
    assert firsts == {"consistent", "inconsistent"}


@pytest.mark.parametrize(
    ("candidates", "num_shots", "complaint"),
    [
        (
            [each for each in CANDIDATES if each.label == "consistent"],
            2,
            "both labels, none that can be used is inconsistent",
        ),
        ([each for each in CANDIDATES if each.label == "inconsistent"], 1, "none that can be used is consistent"),
        (CANDIDATES, 14, "needs 7 demonstrations that are consistent, there are 6"),
        ([*CANDIDATES[:2], CANDIDATES[0]], 4, "there are 1"),
        ([], 2, "both labels"),
    ],
)
def test_too_few_of_a_label_is_an_error(candidates: list[Demonstration], num_shots: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        draw(candidates, num_shots, seed=0)


def test_a_window_of_sentences_is_consistent_if_all_of_them_are() -> None:
    labels = labels_of_windows(("consistent", "consistent", "consistent", "inconsistent", "consistent"), 2)
    assert labels == ("consistent", "inconsistent", "consistent")


def test_sbs_shows_an_answer_for_each_sentence() -> None:
    shown = Demonstration(
        document="D.",
        summary="It rained. It snowed. It froze.",
        label="inconsistent",
        sentence_labels=("consistent", "inconsistent", "consistent"),
    )
    prompt = render(BOOK["sbs_1"], [shown], sentences_per_window=1)

    assert data_of(prompt) == ["D.", "1. It rained.\n2. It snowed.\n3. It froze."]
    text = "".join(segment.text for segment in prompt if isinstance(segment, Template | Data))
    assert text.endswith("\nA: 1. Yes. 2. No. 3. Yes.\n\n")


def test_every_request_of_a_run_opens_with_the_same_demonstrations() -> None:
    identity = Identity(paradigm="sbs", shots=2, demonstrations="x")
    shown = render(BOOK["sbs_1"], CANDIDATES[:2], sentences_per_window=1)
    paradigm = make_paradigm(identity, BOOK, reasoning=False, demonstrations=shown)
    prompts: list[Prompt] = []
    for summary in ("It rained. It snowed.", "She left."):
        script = Script()
        program = paradigm(pair(summary))
        wanted = next(program)
        while True:
            assert isinstance(wanted, tuple)
            prompts += [request.prompt for request in wanted]
            try:
                wanted = program.send(tuple(script(request) for request in wanted))
            except StopIteration:
                break
    assert len(prompts) == 3
    assert {prompt[1 : 1 + len(shown)] for prompt in prompts} == {shown}


def test_a_digest_tells_kinds_and_borders_apart() -> None:
    prompts: list[Prompt] = [
        (Template("ab"),), (Data("ab"),), (Template("a"), Template("b")), (Template("a"), Data("b")), ()
    ]  # fmt: skip
    assert len({digest(prompt) for prompt in prompts}) == 5


def test_a_pair_on_a_document_that_is_shown_is_refused() -> None:
    paradigm = held_out(make_paradigm(Identity(paradigm="vanilla"), BOOK, reasoning=False), {"Shown."})

    assert run(Identity(paradigm="vanilla"), pair("It rained."), Script())
    with pytest.raises(UsageError, match="row 0 is one of the demonstrations"):
        paradigm(pair("It rained.", document="Shown."))


# The file


COLUMNS: dict[str, list[Any]] = {
    "document": ["It rained.", "It snowed.", "It froze.", "It thawed."],
    "summary": ["Rain fell.", "It was hot. It was dry.", "Ice formed.", "Snow fell."],
    "label": [1, 0, 1, 0],
}


@pytest.fixture
def shots(tmp_path: Path) -> Any:
    """Reads a demonstrations file of the given columns."""

    def read(paradigm: str = "vanilla", **columns: list[Any] | None) -> list[Demonstration]:
        given = {name: values for name, values in {**COLUMNS, **columns}.items() if values is not None}
        pq.write_table(pa.table(given), tmp_path / "shots.parquet")
        return read_demonstrations(identity_of(tmp_path, paradigm))

    return read


def identity_of(folder: Path, paradigm: str = "vanilla", num_shots: int = 2, **options: Any) -> Identity:
    file = str(folder / "shots.parquet")
    return Identity(paradigm=paradigm, shots=num_shots, demonstrations=file, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels",
    [
        [1, 0, 1, 0],
        [True, False, True, False],
        [1.0, 0.0, 1.0, 0.0],
        ["1", "0", "1", "0"],
        ["consistent", "inconsistent", "Consistent ", "INCONSISTENT"],
    ],
)
def test_labels_are_numbers_or_words(shots: Any, labels: list[Any]) -> None:
    assert [each.label for each in shots(label=labels)] == ["consistent", "inconsistent"] * 2


def test_rows_without_a_label_or_a_text_are_left_out(shots: Any) -> None:
    found = shots(label=[None, 0, 1, 0], document=["A.", "B.", " ", "D."])
    assert [each.document for each in found] == ["B.", "D."]


def test_cot_takes_rows_with_a_reasoning_and_sbs_rows_with_a_label_for_each_sentence(shots: Any) -> None:
    reasoned = shots("cot", reasoning=["It says so.", " ", None, "No."])
    assert [each.reasoning for each in reasoned] == ["It says so.", "No."]

    labelled = shots("sbs", sentence_labels=[[1], [1, 0], [1, 1], None])
    assert [each.sentence_labels for each in labelled] == [("consistent",), ("consistent", "inconsistent")]


@pytest.mark.parametrize(
    ("paradigm", "columns", "complaint"),
    [
        ("vanilla", {"label": [2, 0, 1, 0]}, "row 0: a label is 1, 0, consistent or inconsistent, got 2"),
        ("vanilla", {"label": ["yes", "no", "yes", "no"]}, "got 'yes'"),
        ("vanilla", {"label": None}, "no column 'label'"),
        ("vanilla", {"summary": None, "sumary": ["a"] * 4}, "no column 'summary'.*did you mean 'sumary'"),
        ("vanilla", {"label": [None] * 4}, r"no usable row \(4 left out\)"),
        ("cot", {}, "no column 'reasoning', which --paradigm cot needs"),
        ("cot", {"reasoning": [""] * 4}, "and a reasoning"),
        ("sbs", {}, "no column 'sentence_labels', which --paradigm sbs needs"),
        ("sbs", {"sentence_labels": [[1, 1]] * 3 + [[]]}, None),
        ("sbs", {"sentence_labels": [[]] * 4}, "as many sentence_labels as the summary has sentences"),
        ("sbs", {"sentence_labels": [[3]] * 4}, "got 3"),
    ],
)
def test_what_the_file_lacks_is_named(
    shots: Any, paradigm: str, columns: dict[str, Any], complaint: str | None
) -> None:
    if complaint is None:
        assert len(shots(paradigm, **columns)) == 1
        return
    with pytest.raises(UsageError, match=complaint):
        shots(paradigm, **columns)


def test_a_file_that_is_missing_or_no_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--demonstrations .*shots.parquet cannot be read"):
        read_demonstrations(identity_of(tmp_path))
    (tmp_path / "shots.parquet").write_text("no Parquet")
    with pytest.raises(UsageError, match="cannot be read"):
        read_demonstrations(identity_of(tmp_path))


def prepare(folder: Path, source: Any = None, *, num_shots: int = 2, max_model_len: int | None = None) -> Any:
    tokenizer = FakeTokenizer()
    book = PromptBook(tokenizer.render_chat)
    count = make_counters(tokenizer).prompt
    return prepare_shots(identity_of(folder, num_shots=num_shots), book, count, max_model_len, source)


def test_documents_of_the_input_are_never_shown(tmp_path: Path, shots: Any, make_input: Any) -> None:
    shots()
    source = open_source([str(make_input([("It rained.", "A."), ("Other.", "B."), ("It snowed.", "C.")] * 20))])

    assert prepare(tmp_path, source).documents == {"It froze.", "It thawed."}
    with pytest.raises(UsageError, match=r"there are 1 that can be used.*2 were left out because their documents"):
        prepare(tmp_path, source, num_shots=4)
    assert len(prepare(tmp_path, num_shots=4).documents) == 4


def test_documents_are_found_byte_for_byte_in_all_shards(tmp_path: Path, make_input: Any) -> None:
    (tmp_path / "shards").mkdir()
    make_input([("Été.", "A."), (None, "B.")], name="shards/a.parquet")
    make_input([("Été. ", "A."), ("北京", "B.")], name="shards/b.parquet")
    source = open_source([str(tmp_path / "shards")])

    assert source.documents_among({"Été.", "北京", "été."}) == {"Été.", "北京"}
    assert source.documents_among(()) == frozenset()


def test_demonstrations_must_leave_room_for_a_document(tmp_path: Path, shots: Any) -> None:
    shots()
    with pytest.raises(UsageError, match=rf"--shots 2: the demonstrations have \d+ tokens.*{LEAST_ROOM} at least"):
        prepare(tmp_path, max_model_len=400)
    assert prepare(tmp_path, max_model_len=4000).prompt
