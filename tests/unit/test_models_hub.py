"""What the Hub answers is played by fakes; their errors are the Hub client's own classes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from batchfact.errors import UsageError
from batchfact.models import ModelEntry, is_local, locate, pull
from batchfact.models.registry import HuggingFace
from tests.unit.model_folders import write_folder

ENTRY = ModelEntry(name="llama", source=HuggingFace(repo="owner/name", gated=True))


class Hub:
    """A repository of the Hub with the files of a folder; `cached` says whether they are on this machine already."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cached = False
        self.fails: Exception | None = None
        self.downloads: list[str] = []
        self.asked: list[dict[str, object]] = []
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self.model_info)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.hf_hub_download)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def model_info(self, repo: str, revision: str | None = None) -> SimpleNamespace:
        if self.fails:
            raise self.fails
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=path.name) for path in self.folder.iterdir()])

    def hf_hub_download(self, repo: str, name: str, revision: str | None = None) -> str:
        self.downloads.append(name)
        return str(self.folder / name)

    def snapshot_download(self, repo: str, *, local_files_only: bool = False, **asked: object) -> str:
        if local_files_only and not self.cached:
            raise errors.LocalEntryNotFoundError("not here")
        self.asked.append(asked)
        if not local_files_only:
            self.downloads.append("*")
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(write_folder(tmp_path / "repository"), monkeypatch)


def test_a_model_that_is_not_here_is_downloaded_configuration_first(hub: Hub):
    assert not is_local(ENTRY)
    assert locate(ENTRY) == hub.folder
    assert hub.downloads == ["config.json", "*"]


def test_a_cached_model_is_taken_without_asking_the_network_and_pull_asks(hub: Hub):
    hub.cached = True
    assert is_local(ENTRY)
    assert locate(ENTRY) == hub.folder
    assert hub.downloads == []
    assert pull(ENTRY) == hub.folder
    assert hub.downloads == ["config.json", "*"]


def test_an_incomplete_cached_model_is_downloaded_again(hub: Hub):
    hub.cached = True
    index = hub.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert not is_local(ENTRY)
    with pytest.raises(UsageError, match="weight files are missing"):
        locate(ENTRY)
    assert "*" in hub.downloads


def test_code_and_pickles_are_never_asked_for(hub: Hub):
    locate(ENTRY)
    allowed = hub.asked[-1]["allow_patterns"]
    assert isinstance(allowed, list)
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in allowed)
    assert "*/*" in str(hub.asked[-1]["ignore_patterns"])


def test_a_pinned_revision_is_asked_for(hub: Hub):
    locate(ModelEntry(name="x", source=HuggingFace(repo="owner/name", revision="abc")))
    assert hub.asked[-1]["revision"] == "abc"


def refusal(hub: Hub) -> str:
    with pytest.raises(UsageError) as raised:
        locate(ENTRY)
    assert "*" not in hub.downloads, "weights were downloaded for a model that cannot run"
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_only_pickled_weights_are_refused_before_the_download(hub: Hub):
    (hub.folder / "model.safetensors").rename(hub.folder / "pytorch_model.bin")
    assert "pickles" in refusal(hub)


def test_a_model_that_needs_its_own_code_is_refused_before_the_download(hub: Hub):
    (hub.folder / "config.json").write_text('{"model_type": "unheard_of", "auto_map": {"AutoConfig": "x.X"}}')
    assert "never runs" in refusal(hub)


def test_an_unreadable_configuration_is_refused_before_the_download(hub: Hub):
    (hub.folder / "config.json").write_text("<html>")
    assert "config.json is unreadable" in refusal(hub)


def answered(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    http = pytest.importorskip(errors.HfHubHTTPError.__bases__[0].__module__.split(".")[0])
    request = http.Request("GET", "https://localhost/")
    return kind("the Hub's many\nlines", response=http.Response(status, request=request))


def test_a_gated_model_says_how_to_get_access(hub: Hub):
    hub.fails = answered(errors.GatedRepoError, 403)
    said = refusal(hub)
    assert said.startswith("llama is gated: accept its licence on the Hugging Face page of owner/name")
    assert "`batchfact models add llama FOLDER`" in said


def test_a_model_that_is_not_there_asks_to_check_its_name(hub: Hub):
    hub.fails = answered(errors.RepositoryNotFoundError, 404)
    assert "there is no model owner/name" in refusal(hub)


def test_a_revision_that_is_not_there_is_named(hub: Hub):
    hub.fails = answered(errors.RevisionNotFoundError, 404)
    assert "owner/name has no revision" in refusal(hub)


@pytest.mark.parametrize("status", [500, 429])
def test_an_answer_that_is_no_answer_keeps_its_first_line(hub: Hub, status: int):
    hub.fails = answered(errors.HfHubHTTPError, status)
    assert "could not be downloaded (the Hub's many); check the network" in refusal(hub)


def test_no_network_says_so_with_a_way_out(hub: Hub):
    http = pytest.importorskip(errors.HfHubHTTPError.__bases__[0].__module__.split(".")[0])
    hub.fails = http.ConnectError("Name or service not known")
    said = refusal(hub)
    assert "llama (owner/name) could not be downloaded (Name or service not known); check the network" in said
    assert "`batchfact models add llama FOLDER`" in said


def test_offline_mode_is_named_as_the_reason(hub: Hub):
    hub.fails = errors.OfflineModeIsEnabled("long text")
    assert "HF_HUB_OFFLINE forbids" in refusal(hub)
