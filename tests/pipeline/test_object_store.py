"""Input and output on an S3 server: moto's, in a process of this machine's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from batchfact import object_stores, output_files, pipeline
from batchfact.errors import RunFailedError, UsageError
from batchfact.merging import merge_journals
from batchfact.pipeline import RunReport
from batchfact.reducing import reduce_journal
from batchfact.settings import make_config
from batchfact.source import open_source
from tests.pipeline.command_line import PAIRS, CommandLine

BUCKET = "pairs"


class Store:
    """A server with one bucket, and runs that read and write there."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.address = f"{host}:{port}"
        # What the server holds belongs to the process, not to the server.
        self.tell("reset-auth", "inf")
        self.tell("reset")
        self.is_up = True
        self.files: Any = pafs.S3FileSystem(endpoint_override=self.address, scheme="http", allow_bucket_creation=True)
        self.files.create_dir(BUCKET)

    def tell(self, command: str, data: str = "") -> None:
        """A command to the server itself; `reset-auth` says how many requests are answered without a known key."""
        # A type of its own: Flask may take urllib's usual one for a form, and the server then sees no data.
        request = Request(
            f"http://{self.address}/moto-api/{command}", data.encode(), headers={"Content-Type": "text/plain"}
        )
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        if self.is_up:
            self.server.stop()
            self.server._server.server_close()
        self.is_up = False

    def uri(self, key: str, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{key}?endpoint_override={self.address}&scheme=http"

    def put(self, key: str, local: Path) -> str:
        pafs.copy_files(
            str(local), f"{BUCKET}/{key}", source_filesystem=pafs.LocalFileSystem(), destination_filesystem=self.files
        )
        return self.uri(key)

    def read(self, key: str) -> pa.Table:
        return pq.read_table(f"{BUCKET}/{key}", filesystem=self.files)

    def names(self) -> list[str]:
        infos = self.files.get_file_info(pafs.FileSelector(BUCKET, recursive=True))
        return sorted(info.path.removeprefix(f"{BUCKET}/") for info in infos if info.type == pafs.FileType.File)

    def run(self, *inputs: str, output: str, **options: Any) -> RunReport:
        given = {"engine": "fake", "model": str(self.model), "journal": str(self.folder / "journal"), **options}
        return anyio.run(pipeline.run, make_config(inputs, output, given))

    def refusal(self, *inputs: str, output: str, **options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            self.run(*inputs, output=output, **options)
        return str(caught.value)


@pytest.fixture
def store(fake_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = Store(fake_model, tmp_path)
    yield store
    store.stop()


@pytest.fixture
def in_process(store: Store, make_input: Any) -> pa.Table:
    """The output of a run on local files."""
    store.run(str(make_input(PAIRS)), output=str(store.folder / "out.parquet"), journal=str(store.folder / "local"))
    return pq.read_table(store.folder / "out.parquet")


def test_a_file_is_scored_from_and_to_a_bucket(store: Store, in_process: pa.Table) -> None:
    source = store.put("in.parquet", store.folder / "in.parquet")
    report = store.run(source, output=store.uri("deep/out.parquet"))
    again = store.run(source, output=store.uri("deep/out.parquet"))

    assert store.read("deep/out.parquet") == in_process
    assert store.names() == ["deep/out.parquet", "in.parquet"]
    assert report.totals.rows == again.progress.num_resumed == len(PAIRS)
    assert not list(store.folder.glob("journal/.batchfact-*"))


def test_the_command_line_finds_a_server_by_the_environment(
    store: Store, in_process: pa.Table, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{store.address}")
    store.put("in.parquet", store.folder / "in.parquet")
    refused = cli.run(f"s3://{BUCKET}/in.parquet", f"s3://{BUCKET}/out.parquet", code=2)
    cli.run(f"s3://{BUCKET}/in.parquet", f"s3://{BUCKET}/out.parquet", "--journal", "work")

    assert "name a local folder with --journal" in refused.stderr
    assert store.read("out.parquet") == in_process


def test_folders_and_globs_are_read_and_a_folder_becomes_a_folder(store: Store, make_input: Any) -> None:
    for number in range(3):
        store.put(f"in/{number}.parquet", make_input(PAIRS[number * 4 : number * 4 + 4], name=f"{number}.parquet"))
    sources = [open_source([store.uri(place)]) for place in ("in", "in/*.parquet", "**/1.parquet")]
    store.run(store.uri("in"), output=store.uri("out"))

    assert [source.num_rows for source in sources] == [12, 12, 4]
    assert [name for name in store.names() if name.startswith("out/")] == [f"out/{n}.parquet" for n in range(3)]
    assert store.read("out/1.parquet")["summary"].to_pylist() == [summary for _, summary in PAIRS[4:8]]


def test_another_fold_replaces_the_object(store: Store, make_input: Any) -> None:
    source = store.put("in.parquet", make_input(PAIRS))
    output = store.uri("out.parquet")
    store.run(source, output=output)
    reduce_journal(
        output, to=None, inputs=(), journal=str(store.folder / "journal"), options={"column-prefix": "again_"}
    )

    assert "again_label" in store.read("out.parquet").schema.names
    assert store.names() == ["in.parquet", "out.parquet"]


def test_shards_are_merged_to_a_bucket(store: Store, in_process: pa.Table) -> None:
    source = store.put("in.parquet", store.folder / "in.parquet")
    output = store.uri("out.parquet")
    for shard in ("1/2", "2/2"):
        store.run(source, output=output, shard=shard)
    assert store.names() == ["in.parquet"]
    merge_journals([str(store.folder / "journal"), source], output, options={})

    assert store.read("out.parquet") == in_process


def test_an_output_that_fails_leaves_what_was_there(
    store: Store, make_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store.put("in.parquet", make_input(PAIRS))
    output = store.uri("out.parquet")
    store.run(source, output=output)
    before = store.read("out.parquet")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION during UploadPart operation")

    monkeypatch.setattr(output_files, "publish", fails)
    with pytest.raises(RunFailedError, match=r"check the server's address; all finished rows are kept"):
        store.run(source, output=output, threshold=0.4)

    assert store.read("out.parquet") == before
    assert not list(store.folder.glob("journal/.batchfact-*/*"))


def test_an_output_that_is_there_or_is_the_input_is_refused(store: Store, make_input: Any) -> None:
    source = store.put("in.parquet", make_input(PAIRS))
    other = store.put("other.parquet", make_input(PAIRS))

    assert "is the input" in store.refusal(source, output=source)
    assert "exists already" in store.refusal(source, output=other)


def test_what_is_not_there_is_told_before_a_model_loads(store: Store, make_input: Any) -> None:
    source = store.put("in.parquet", make_input(PAIRS))
    output = store.uri("out.parquet")

    assert re.search(
        r"input s3://pairs/gone.parquet\S* does not exist", store.refusal(store.uri("gone.parquet"), output=output)
    )
    assert "does not exist" in store.refusal(store.uri("in.parquet", bucket="nowhere"), output=output)
    assert "no file matches" in store.refusal(store.uri("gone/*.parquet"), output=output)
    told = store.refusal(source, output=store.uri("out.parquet", bucket="nowhere"))
    assert "output s3://nowhere/out.parquet" in told and "create the bucket first" in told
    assert not (store.folder / "journal").exists()


def test_wrong_credentials_are_told(store: Store, make_input: Any) -> None:
    source = store.put("in.parquet", make_input(PAIRS))
    store.tell("reset-auth", "0")
    told = store.refusal(source, output=store.uri("out.parquet"))

    assert "input s3://pairs/in.parquet" in told
    assert "check the credentials" in told


def test_a_server_that_is_gone_is_told_in_bounded_time(
    store: Store, make_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded by the number of tries: a client that never gave up would run into this test's limit of time."""
    monkeypatch.setattr(object_stores, "TRIES", 2)
    object_stores._s3.cache_clear()
    local = str(make_input(PAIRS))
    source = store.put("in.parquet", Path(local))
    store.stop()

    told = store.refusal(source, output=str(store.folder / "out.parquet"))
    assert "NETWORK_CONNECTION" in told and "check the server's address" in told
    told = store.refusal(local, output=store.uri("out.parquet"))
    assert "output s3://pairs/out.parquet" in told and "check the server's address" in told


def test_a_server_that_goes_during_a_run_ends_it_and_the_rows_are_kept(
    store: Store, in_process: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_stores, "TRIES", 2)
    object_stores._s3.cache_clear()
    local = str(store.folder / "in.parquet")
    output = store.uri("out.parquet")
    publish = object_stores.publish

    def stop_first(*args: Any) -> None:
        store.stop()
        publish(*args)

    monkeypatch.setattr(output_files, "publish", stop_first)
    with pytest.raises(RunFailedError, match=r"NETWORK_CONNECTION.*all finished rows are kept"):
        store.run(local, output=output)
    journal = str(store.folder / "journal")
    totals = reduce_journal(output, to=str(store.folder / "late.parquet"), inputs=(), journal=journal, options={})

    assert totals.rows == len(PAIRS)
    assert pq.read_table(store.folder / "late.parquet") == in_process
