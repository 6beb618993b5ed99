"""What is measured: batchfact, and what people would use in its place. Each arm loads its packages when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from msgspec import Struct

from bench.throughput.task import ArmRecord, Task


class Arm(Struct, frozen=True):
    """`place` is MODULE:FUNCTION in this package. `is_slow` arms get a subset of the rows."""

    title: str
    place: str
    is_slow: bool = False

    def load(self) -> Callable[[Task], ArmRecord]:
        module, _, function = self.place.partition(":")
        loaded: Callable[[Task], ArmRecord] = getattr(import_module(f"{__name__}.{module}"), function)
        return loaded


REFERENCE = "batchfact"
ARMS: Mapping[str, Arm] = {
    REFERENCE: Arm("batchfact run", "batchfact_run:score"),
    "chat": Arm("LLM.chat, rows in file order", "offline:chat"),
    "generate": Arm("LLM.generate, pre-tokenised, sorted by document", "offline:generate"),
    "engine": Arm("the engine alone, batchfact's settings, perfect order", "engine_alone:score"),
    "run-batch": Arm("vllm run-batch", "run_batch:score"),
    "ray": Arm("Ray Data LLM", "ray_data:score"),
    "minicheck": Arm("MiniCheck-style call: no prefix cache", "offline:without_cache", is_slow=True),
    "transformers": Arm("transformers loop, batches of 8", "transformers_loop:score", is_slow=True),
}
