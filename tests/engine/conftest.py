"""One started engine for all tests here: a start takes half a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from batchfact.engines.base import EngineSpec
from batchfact.engines.vllm import VllmEngine, factory

KV_BYTES = 1 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="module")
def spec(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    log_file = tmp_path_factory.mktemp("engine") / "engine.log"
    return EngineSpec(model=model_folder, kv_cache_bytes=KV_BYTES, max_model_len=2048, log_file=log_file)


@pytest.fixture(scope="module")
def quiet_imports() -> Iterator[None]:
    """What vLLM and its dependencies warn about on import is not ours to change."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
async def engine(spec: EngineSpec, quiet_imports: None) -> AsyncIterator[VllmEngine]:
    async with factory.open(spec) as started:
        yield started
