"""What all tests share: the fake engine's entry point, small Parquet files, and the real default model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import setuptools  # noqa: F401  (torch imports it, and refuses where something imported distutils before it)

FAKE_ENGINE = Path(__file__).parent / "fake_engine"
sys.path.insert(0, str(FAKE_ENGINE))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FAKE_ENGINE), os.environ.get("PYTHONPATH")]))

MakeInput = Callable[..., Path]


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The embedded default model, converted into the cache on first use."""
    from batchfact.models import find_model, locate

    return locate(find_model("smollm2-135m"))


@pytest.fixture
def fake_model(tmp_path: Path) -> Path:
    """A folder that looks like a model to everything but a real engine."""
    folder = tmp_path / "fake-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def make_input(tmp_path: Path) -> MakeInput:
    """Writes pairs as a Parquet file in the test's folder."""

    def write(
        pairs: Sequence[tuple[str | None, str | None]], name: str = "in.parquet", **columns: Sequence[Any]
    ) -> Path:
        documents, summaries = zip(*pairs, strict=True) if pairs else ((), ())
        table = pa.table(
            {"document": pa.array(documents, pa.string()), "summary": pa.array(summaries, pa.string()), **columns}
        )
        path = tmp_path / name
        pq.write_table(table, path, row_group_size=16)
        return path

    return write


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """vLLM runs on asyncio alone, so that is what is tested."""
    return "asyncio"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu or browser are skipped, with the reason, where there is no NVIDIA GPU or no Chromium.

    With several processes (`-n`) a file's tests stay together; so do those of the real engine, which takes all cores.
    """
    for item in items:
        group = "engine" if item.path.parent.name == "engine" else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    needs = {
        "gpu": ("nvidia-smi", "no NVIDIA GPU here (nvidia-smi is not found)"),
        "browser": ("chromium", "no Chromium here (chromium is not found); CONTRIBUTING.md says how to get it"),
    }
    for marker, (program, reason) in needs.items():
        if shutil.which(program) is None:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))
