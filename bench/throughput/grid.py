"""Which arms meet which inputs, in which order, and the ratios that are aimed at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bench.throughput.arms import ARMS, REFERENCE

REASONING = "reasoning"
"""Not a layout but a mode: adjacent rows, few of them, with the model's reasoning before each label."""
REASONING_SHARE = 0.1
REASONING_ARMS = (REFERENCE, "chat", "generate", "engine")


class Block(Struct, frozen=True, kw_only=True):
    """Arms that are compared with each other on one input."""

    input: str
    arms: tuple[str, ...]


QUICK = (
    Block(input="adjacent", arms=(REFERENCE, "chat", "generate", "engine", "minicheck", "transformers")),
    Block(input="shuffled", arms=(REFERENCE, "chat", "run-batch", "ray")),
)
FULL = (
    *(Block(input=name, arms=tuple(ARMS)) for name in ("adjacent", "shuffled", "sixteen", "duplicates", "long")),
    Block(input=REASONING, arms=REASONING_ARMS),
)

TARGETS: Mapping[tuple[str, str | None], float] = {
    ("chat", "shuffled"): 3.0,
    ("chat", "adjacent"): 1.2,
    ("generate", None): 1.1,
    ("engine", None): 0.97,
    ("run-batch", "shuffled"): 3.0,
    ("ray", "shuffled"): 2.5,
    ("minicheck", "adjacent"): 5.0,
    ("transformers", "adjacent"): 8.0,
}
"""batchfact's speed over the arm's, at least; None stands for any input."""


def target(arm: str, input_name: str) -> float | None:
    return TARGETS.get((arm, input_name), TARGETS.get((arm, None)))


def interleaved(arms: Sequence[str], passes: int) -> list[tuple[str, int]]:
    """Arms with the number of their turn: A B C, C B A, A B C ...; a single pass ends with the first arm once more.

    So a machine that gets slower or faster meanwhile does it to all of them, and the first one's turns show how much.
    """
    order: list[str] = []
    for number in range(passes):
        order += arms if number % 2 == 0 else reversed(arms)
    if passes == 1 and len(arms) > 1:
        order.append(arms[0])
    return [(arm, order[:place].count(arm)) for place, arm in enumerate(order)]
