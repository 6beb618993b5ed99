"""Where vLLM's workers run: whether the machine has a GPU, or a core, for each, and which cores each may use.

Sizes from a spec and facts of the machine flow in; a refusal, or a value for vLLM's environment, flows out. It does not
import vllm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batchfact.engines.base import EngineSpec
from batchfact.errors import UsageError

_NODES = Path("/sys/devices/system/node")
_FEW_CORES = 4


def num_workers(spec: EngineSpec) -> int:
    """One for each part of each copy of the model."""
    return spec.tensor_parallel_size * spec.data_parallel_size


def refuse_too_many(spec: EngineSpec, num_devices: int, device: str) -> None:
    """Raises: UsageError where the machine has fewer devices than there are workers."""
    needed = num_workers(spec)
    if needed > max(num_devices, 1):
        raise UsageError(
            f"--tensor-parallel-size {spec.tensor_parallel_size} and --data-parallel-size {spec.data_parallel_size} "
            f"need {needed} {device}s, and {num_devices} can be used here; lower one of them"
        )


def num_memory_nodes() -> int:
    """NUMA nodes of this machine, at least one."""
    return max(1, len(list(_NODES.glob("node[0-9]*"))))


def thread_binding(cores: Sequence[int], workers: int, memory_nodes: int) -> str | None:
    """The cores of each CPU worker, as VLLM_CPU_OMP_THREADS_BIND wants them; None where vLLM chooses well by itself.

    By itself vLLM keeps a core of every worker free, which is half of a machine with two, and wants a NUMA node for
    each worker.
    """
    if workers == 1:
        return ",".join(map(str, cores)) if 0 < len(cores) < _FEW_CORES else None
    if memory_nodes >= workers or len(cores) < workers:
        return None
    share = len(cores) // workers
    return "|".join(",".join(map(str, cores[at * share : (at + 1) * share])) for at in range(workers))
