"""Devices and cores for several workers of vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchfact.config import Runtime
from batchfact.engines.base import EngineSpec
from batchfact.engines.vllm_workers import num_memory_nodes, refuse_too_many, thread_binding
from batchfact.errors import UsageError


@pytest.mark.parametrize(
    ("cores", "workers", "memory_nodes", "binding"),
    [
        (range(2), 1, 1, "0,1"),
        (range(8), 1, 1, None),
        (range(2), 2, 1, "0|1"),
        (range(9), 2, 1, "0,1,2,3|4,5,6,7"),
        ((3, 5, 8, 9), 4, 1, "3|5|8|9"),
        (range(32), 2, 2, None),
        (range(2), 4, 1, None),
        ((), 1, 1, None),
    ],
)
def test_cores_are_parted_evenly_where_vllm_would_not(
    cores: range, workers: int, memory_nodes: int, binding: str | None
) -> None:
    assert thread_binding(list(cores), workers, memory_nodes) == binding


def test_this_machine_has_a_memory_node() -> None:
    assert num_memory_nodes() >= 1


def test_more_workers_than_devices_are_refused_with_both_settings() -> None:
    spec = EngineSpec(model=Path(), tensor_parallel_size=2, data_parallel_size=4)
    refuse_too_many(spec, 8, "GPU")
    with pytest.raises(UsageError, match="need 8 GPUs, and 6 can be used here"):
        refuse_too_many(spec, 6, "GPU")


def test_one_worker_is_never_refused() -> None:
    refuse_too_many(EngineSpec(model=Path()), 0, "core")


def test_a_servers_parallelism_is_its_own() -> None:
    with pytest.raises(UsageError, match="are the server's: leave them out"):
        Runtime(engine="openai", base_url="http://localhost/v1", data_parallel_size=2)
