"""The journal: committed work survives, a change of what decides the answers is refused, damage is set aside."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import filelock
import pyarrow.parquet as pq
import pytest

from batchfact import journal as module
from batchfact.errors import RunFailedError, UsageError
from batchfact.journal import COMPACT_PARTS, Journal, default_folder, pending, read_run
from batchfact.journal_parts import Part, batch_rows, crowded, list_parts, make_part, open_part, write_part
from batchfact.records import Finding, Outcome, Span, Usage
from batchfact.source import rows_of

IDENTITY = {"model": {"name": "m", "sha": "1"}, "paradigm": "sent-nli", "inputs": ("a", "b")}


def outcome(row, text_hash=None, **more):
    return Outcome(row=row, text_hash=2**64 - 1 - row if text_hash is None else text_hash, **more)


def open_journal(folder, identity=IDENTITY, fold=None, runtime=None, **more):
    return Journal.open(folder, identity, fold or {}, runtime or {}, **more)


def refusal(*args, **more):
    with pytest.raises(UsageError) as caught:
        open_journal(*args, **more)
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def num_rows(journal):
    return sum(1 for _ in journal.committed())


def num_parts(journal):
    return len(list_parts(journal.folder))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "out.parquet.journal"


FULL = outcome(
    7,
    findings=(
        Finding(start=0, end=9, logprobs=(-0.1, -2.5), reasoning="weil 文 😀", evidence=(Span(1, 2), Span(5, 9))),
        Finding(start=9, end=12, status="engine_error", message="gone", question="who?", entity="she"),
        Finding(start=12, end=14, label="inconsistent"),
    ),
    usage=Usage(10, 5, 3),
)


def test_outcomes_come_back_whole_and_in_row_order(folder):
    with open_journal(folder) as journal:
        journal.append([FULL, outcome(2)])
        journal.append([outcome(5, status="too_long", message="It is too long.")])
        wanted = [outcome(2), outcome(5, status="too_long", message="It is too long."), FULL]
        assert list(journal.outcomes()) == wanted
        assert list(journal.committed()) == [(each.row, each.text_hash) for each in wanted]
        assert num_rows(journal) == 3
    with open_journal(folder) as journal:
        assert list(journal.outcomes()) == wanted and not journal.warnings


def test_a_part_is_named_by_its_append_and_holds_the_promised_columns(folder):
    with open_journal(folder) as journal:
        journal.append([outcome(3), outcome(1)])
        journal.append([outcome(2)])
    assert names(folder) == ["part-00000000-00000000.parquet", "part-00000001-00000001.parquet", "run.json"]
    table = pq.read_table(folder / "part-00000000-00000000.parquet")
    assert table.column_names == ["row", "text_hash", "payload"] and table["row"].to_pylist() == [1, 3]


def test_appending_nothing_writes_nothing(folder):
    with open_journal(folder) as journal:
        journal.append([])
        assert names(folder) == ["run.json"] and num_rows(journal) == 0
        assert list(journal.outcomes()) == list(journal.committed()) == []


def test_the_newest_outcome_of_a_row_counts(folder):
    with open_journal(folder) as journal:
        journal.append([outcome(1, 10), outcome(2, 20)])
        journal.append([outcome(2, 21), outcome(3, 30), outcome(3, 31)])
        assert list(journal.committed()) == [(1, 10), (2, 21), (3, 31)] and num_rows(journal) == 3


def test_appends_after_opening_again_are_newer_than_those_before(folder):
    for text_hash in range(3):
        with open_journal(folder) as journal:
            journal.append([outcome(1, text_hash)])
    with open_journal(folder) as journal:
        assert list(journal.committed()) == [(1, 2)]


def test_committed_leaves_out_what_is_to_be_tried_again(folder):
    with open_journal(folder) as journal:
        journal.append([outcome(1), outcome(2, status="engine_error"), FULL])
        assert [row for row, _ in journal.committed(lambda each: each.status == "engine_error")] == [1, 7]
        assert [row for row, _ in journal.committed(lambda each: len(each.findings) > 0)] == [1, 2]


def test_a_reader_sees_what_was_committed_when_it_was_asked_for(folder):
    with open_journal(folder) as journal:
        for row in range(COMPACT_PARTS):
            journal.append([outcome(row)])
        rows, keys = journal.outcomes(), journal.committed()
        journal.append([outcome(99)])
        journal.compact_if_needed()
        assert num_parts(journal) == 1
        assert [each.row for each in rows] == [row for row, _ in keys] == list(range(COMPACT_PARTS))


# run.json


def test_run_json_has_the_three_sections(folder):
    open_journal(folder, fold={"threshold": 0.5}, runtime={"journal": folder}).close()
    run = read_run(folder)
    assert run.identity == {**IDENTITY, "inputs": ["a", "b"]}
    assert run.fold == {"threshold": 0.5} and run.runtime == {"journal": str(folder)}
    assert read_run(folder.parent) is None


def test_a_change_of_identity_is_refused_and_every_difference_named(folder):
    open_journal(folder).close()
    changed = {"model": {"name": "m", "sha": "2"}, "paradigm": "qg-qa", "inputs": ["a", "b"], "seed": 1}
    text = refusal(folder, changed)
    assert 'model.sha: "1" -> "2"' in text and 'paradigm: "sent-nli" -> "qg-qa"' in text and "seed: null -> 1" in text
    assert "model.name" not in text and "inputs" not in text and "--restart" in text


def test_of_many_differences_the_first_are_named(folder):
    open_journal(folder, {"inputs": {f"{n:03d}": 1 for n in range(100)}}).close()
    text = refusal(folder, {"inputs": {f"{n:03d}": 2 for n in range(100)}})
    assert "inputs.000: 1 -> 2" in text and "and more" in text and "inputs.050" not in text


def test_a_refused_journal_is_left_as_it_was_and_unlocked(folder):
    with open_journal(folder) as journal:
        journal.append([FULL])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    refusal(folder, {"paradigm": "other"})
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    open_journal(folder).close()


def test_a_change_of_fold_keeps_the_rows_and_is_written_down(folder):
    with open_journal(folder, fold={"threshold": 0.5}) as journal:
        journal.append([FULL])
    with open_journal(folder, fold={"threshold": 0.6}) as journal:
        assert list(journal.outcomes()) == [FULL]
    assert read_run(folder).fold == {"threshold": 0.6}


def test_a_change_of_runtime_is_free(folder):
    open_journal(folder, runtime={"workers": 1}).close()
    open_journal(folder, runtime={"workers": 2}).close()
    assert read_run(folder).runtime == {"workers": 2}


def test_restart_drops_everything_of_ours_and_nothing_else(folder):
    with open_journal(folder) as journal:
        journal.append([FULL])
    (folder / "part-00000009-00000009.parquet.corrupt").write_text("x")
    (folder / "notes.txt").write_text("mine")
    with open_journal(folder, {"other": 1}, restart=True) as journal:
        assert num_rows(journal) == 0
    assert names(folder) == ["notes.txt", "run.json"]


@pytest.mark.parametrize(
    "content", [b"", b'{"identity": {', b"[]", b'{"identity": 1, "fold": {}, "runtime": {}}', b"\xff"]
)
def test_a_damaged_run_json_is_one_clear_error_with_the_way_out(folder, content):
    open_journal(folder).close()
    (folder / "run.json").write_bytes(content)
    text = refusal(folder)
    assert "run.json is damaged" in text and "--restart" in text
    open_journal(folder, restart=True).close()


def test_a_run_json_of_another_format_is_refused(folder):
    open_journal(folder).close()
    path = folder / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    assert "has format 2, this version writes 1" in refusal(folder)


def test_parts_without_run_json_are_refused(folder):
    with open_journal(folder) as journal:
        journal.append([FULL])
    (folder / "run.json").unlink()
    assert "no run.json" in refusal(folder)


def test_a_kill_before_run_json_was_renamed_leaves_a_folder_that_opens(folder):
    folder.mkdir(parents=True)
    (folder / "run.json.tmp").write_text('{"ident')
    open_journal(folder).close()
    assert names(folder) == ["run.json"]


def test_a_second_opener_is_refused_by_the_folders_name(folder):
    with open_journal(folder):
        assert f"another process is working on {folder}" in refusal(folder)
        assert "another process" in refusal(folder, restart=True)
    open_journal(folder).close()


def test_another_thread_may_close_the_journal(folder):
    journal = open_journal(folder)
    thread = threading.Thread(target=journal.close)
    thread.start()
    thread.join()
    open_journal(folder).close()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "cannot be made or written" in refusal(tmp_path / "file" / "journal")


def test_the_default_folder_lies_beside_a_local_output():
    assert str(default_folder("some/out.parquet")) == "some/out.parquet.journal"
    with pytest.raises(UsageError, match="--journal"):
        default_folder("s3://bucket/out.parquet")


# Damage and kills


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_part_is_set_aside_and_its_rows_are_not_committed(folder, damage):
    with open_journal(folder) as journal:
        journal.append([outcome(row) for row in range(100)])
        journal.append([outcome(row) for row in range(100, 200)])
    path = folder / "part-00000000-00000000.parquet"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        pq.write_table(pq.read_table(path).select(["row"]), path)
    else:
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
    with open_journal(folder) as journal:
        assert [row for row, _ in journal.committed()] == list(range(100, 200))
        assert len(journal.warnings) == 1 and path.name in journal.warnings[0]
        journal.append([outcome(1)])
    assert (folder / f"{path.name}.corrupt").exists()
    with open_journal(folder) as journal:
        assert not journal.warnings and num_rows(journal) == 101


def test_every_single_byte_flip_in_the_pages_is_noticed_or_harmless(folder):
    """Whatever the page checksums do not cover is covered by the footer's parsing, or changes nothing that is read."""
    wanted = [outcome(row, findings=FULL.findings) for row in range(5)]
    with open_journal(folder) as journal:
        journal.append(wanted)
    path = folder / "part-00000000-00000000.parquet"
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    for at in range(4, len(content) - 8 - footer, 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        with open_journal(folder) as journal:
            assert list(journal.outcomes()) == ([] if journal.warnings else wanted)


def test_rows_out_of_order_are_damage(folder):
    with open_journal(folder) as journal:
        journal.append([outcome(1), outcome(2)])
    path = folder / "part-00000000-00000000.parquet"
    with pq.ParquetFile(path) as file:
        table = file.read()
    pq.write_table(table.take([1, 0]), path)
    with open_journal(folder) as journal:
        assert "out of order" in journal.warnings[0] and num_rows(journal) == 0


def test_leftovers_of_a_kill_are_deleted_at_open(folder):
    with open_journal(folder) as journal:
        journal.append([FULL])
        spill_dir = journal.spill_dir
        (spill_dir / "spill-x").mkdir(parents=True)
        (spill_dir / "spill-x" / "segment-000000").write_text("x")
    (folder / "part-00000001-00000001.parquet.tmp").write_text("half")
    (folder / "mine.tmp").write_text("kept")
    with open_journal(folder) as journal:
        assert list(journal.outcomes()) == [FULL]
    assert names(folder) == ["mine.tmp", "part-00000000-00000000.parquet", "run.json"]
    assert not spill_dir.exists()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "name", ["spill/notes.txt", "spill/spill-x/notes.txt", "part-00000.parquet", "part-0-1.parquet"]
)
def test_a_users_own_files_in_the_folder_are_left_alone(folder, name, restart):
    """The folder may be one that the user named by mistake, with shards in it, or with a folder called spill."""
    mine = folder / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    open_journal(folder).close()
    open_journal(folder, restart=restart).close()
    assert mine.read_text() == "precious"


class KilledError(BaseException):
    """Stands for a kill: nothing that cleans up may depend on catching it."""


@pytest.mark.parametrize("step", ["write_table", "fsync", "replace"])
def test_a_kill_at_any_step_of_an_append_keeps_what_was_committed(folder, step, monkeypatch):
    with open_journal(folder) as journal:
        journal.append([FULL])
        with monkeypatch.context() as patch:
            patch.setattr(*SEAMS[step], killed)
            with pytest.raises(KilledError):
                journal.append([outcome(1)])
    with open_journal(folder) as journal:
        assert list(journal.outcomes()) == [FULL] and not journal.warnings
        journal.append([outcome(1)])
        assert num_rows(journal) == 2


def killed(*args, **kwargs):
    raise KilledError


SEAMS = {
    "write_table": (pq.ParquetWriter, "write_table"),
    "fsync": (os, "fsync"),
    "replace": (Path, "replace"),
    "unlink": (Path, "unlink"),
}


@pytest.mark.parametrize("step", ["write_table", "fsync", "replace", "unlink"])
def test_a_kill_at_any_step_of_a_compaction_loses_and_revives_nothing(folder, step, monkeypatch):
    wanted = []
    with open_journal(folder) as journal:
        for number in range(COMPACT_PARTS):
            journal.append([outcome(0, number), outcome(number + 1)])
        wanted = list(journal.outcomes())
        with monkeypatch.context() as patch:
            patch.setattr(*SEAMS[step], killed)
            with pytest.raises(KilledError):
                journal.compact_if_needed()
    with open_journal(folder) as journal:
        assert list(journal.outcomes()) == wanted and not journal.warnings
        journal.compact_if_needed()
        assert list(journal.outcomes()) == wanted and num_parts(journal) == 1
    assert len(names(folder)) == 2


def test_parts_that_a_damaged_wider_one_was_to_replace_are_used_again(folder, monkeypatch):
    with open_journal(folder) as journal:
        for row in range(COMPACT_PARTS):
            journal.append([outcome(row)])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(KilledError):
                journal.compact_if_needed()
    (folder / f"part-{0:08d}-{COMPACT_PARTS - 1:08d}.parquet").write_bytes(b"damaged")
    with open_journal(folder) as journal:
        assert num_rows(journal) == COMPACT_PARTS and len(journal.warnings) == 1


def test_a_full_disk_fails_the_run_and_keeps_what_was_committed(folder, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with open_journal(folder) as journal:
        journal.append([FULL])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RunFailedError, match="No space left on device; rows committed before are kept"):
                journal.append([outcome(1)])
        assert names(folder) == ["part-00000000-00000000.parquet", "run.json"]
        journal.append([outcome(1)])
        assert [each.row for each in journal.outcomes()] == [1, 7]


# Compaction


def test_a_long_run_never_has_many_parts(folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with open_journal(folder) as journal:
        for number in range(300):
            journal.append([outcome(number), outcome(0, number)])
            journal.compact_if_needed()
            assert num_parts(journal) <= 3 * COMPACT_PARTS
        assert next(journal.committed()) == (0, 299)
        assert num_rows(journal) == 300
    with open_journal(folder) as journal:
        assert num_rows(journal) == 300


def test_compaction_keeps_the_newest_of_each_row(folder):
    with open_journal(folder) as journal:
        for number in range(COMPACT_PARTS):
            journal.append([outcome(row, number) for row in range(number, COMPACT_PARTS)])
        journal.compact_if_needed()
        assert num_parts(journal) == 1
        assert list(journal.committed()) == [(row, row) for row in range(COMPACT_PARTS)]


def test_a_row_is_written_again_once_for_each_power_of_eight_appends(tmp_path):
    parts: list[Part] = []
    num_written = most_parts = 0
    for number in range(4096):
        parts.append(make_part(tmp_path, number, number))
        while old := crowded(parts):
            num_written += old[-1].last - old[0].first + 1
            start = parts.index(old[0])
            parts[start : start + len(old)] = [make_part(tmp_path, old[0].first, old[-1].last)]
        most_parts = max(most_parts, len(parts))
    assert num_written == 4096 * 4
    assert most_parts <= (COMPACT_PARTS - 1) * 4


def test_small_parts_before_large_ones_do_not_stay(tmp_path):
    small = [make_part(tmp_path, number, number) for number in range(7)]
    large = make_part(tmp_path, 7, 20)
    after = make_part(tmp_path, 21, 21)
    assert crowded([*small, large, after]) == [*small, large]
    assert crowded([*small[:6], large, after]) == []


def test_appends_go_on_while_compaction_runs(folder, monkeypatch):
    with open_journal(folder) as journal:
        for row in range(COMPACT_PARTS):
            journal.append([outcome(row)])
        original = write_part

        def write_and_append(path, batches):
            if path.name.endswith(f"-{COMPACT_PARTS - 1:08d}.parquet"):
                journal.append([outcome(100), outcome(0, 5)])
            original(path, batches)

        monkeypatch.setattr(module, "write_part", write_and_append)
        journal.compact_if_needed()
        assert num_parts(journal) == 2 and num_rows(journal) == COMPACT_PARTS + 1
        assert next(journal.committed()) == (0, 5)


def test_long_payloads_are_read_in_short_batches(folder):
    reasoning = "".join(chr(97 + number * number % 26) for number in range(200_000))
    with open_journal(folder) as journal:
        journal.append([outcome(row, findings=(Finding(start=0, end=1, reasoning=reasoning),)) for row in range(50)])
        (part,) = list_parts(folder)
        with open_part(part) as file:
            assert file.num_row_groups >= 2 and batch_rows(file) <= 8
        assert sum(len(each.findings[0].reasoning) for each in journal.outcomes()) == 50 * 200_000


# Resuming


def test_pending_gives_what_is_not_committed_or_was_with_another_text():
    rows = list(rows_of([("d", f"s{row}") for row in range(6)] + [(None, "s")] * 2))
    hashes = [row.text_hash for row in rows]
    committed = [(0, hashes[0]), (2, 12345), (3, hashes[3]), (6, hashes[6]), (99, 1)]
    assert [row.row for row in pending(rows, committed)] == [1, 2, 4, 5, 7]
    assert list(pending(rows, [])) == rows
    assert list(pending(rows, enumerate(hashes))) == []
    assert [row.row for row in pending(rows[3:], committed)] == [4, 5, 7]


def test_the_lock_is_a_real_file_lock(folder):
    with open_journal(folder):
        other = filelock.FileLock(folder / ".lock")
        with pytest.raises(filelock.Timeout):
            other.acquire(timeout=0)
