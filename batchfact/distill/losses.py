"""What a step learns from: cross-entropy on completions, summary by summary.

Logits of one tree and its groups flow in; one weighted loss flows out. A group is one summary as it is shown here: one
statement, or its windows. Where only the summary's label is known, the windows are instances of it: an inconsistent
summary's loss is on the window that looks worst, which is what the fold `any` decides by, and a consistent one's on
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from msgspec import Struct
from torch.nn import functional

Rule = Literal["each", "all", "any"]
"""How a group's label holds for its branches.

`each`: every branch has a label of its own. `all`: the summary is consistent, so every window is. `any`: it is
inconsistent, and at least one window is wrong.
"""


class Group(Struct, frozen=True, kw_only=True):
    """One summary in a tree: its branches' numbers, how its label holds for them, and what it counts."""

    branches: tuple[int, ...]
    rule: Rule
    weight: float


def branch_losses(logits: torch.Tensor, targets: torch.Tensor, branch_of: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each branch's completion, over the full vocabulary: (num_branches,).

    Args:
        logits: (num_targets, vocab), float32.
    """
    of_targets = functional.cross_entropy(logits, targets, reduction="none")
    sizes = torch.bincount(branch_of)
    return torch.zeros(len(sizes), device=logits.device).index_add(0, branch_of, of_targets) / sizes


def margins(logits: torch.Tensor, last: torch.Tensor, label_ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """The logarithm of P(consistent) / P(inconsistent) at each branch's label: (num_branches,).

    Args:
        label_ids: ids of the spellings of the two labels, the consistent one first; their probabilities add up.
    """
    consistent, inconsistent = (logits[last][:, list(ids)].logsumexp(dim=-1) for ids in label_ids)
    return consistent - inconsistent


def weighted_loss(
    losses: torch.Tensor, margins: torch.Tensor, groups: Sequence[Group], *, lowest_share: float
) -> torch.Tensor:
    """The sum of the groups' losses times their weights; divided by the sum of weights it is a mean.

    Args:
        lowest_share: of a consistent summary's loss, the part that its worst window has alone.
    """
    total = losses.new_zeros(())
    for group in groups:
        numbers = list(group.branches)
        own = losses[numbers]
        worst = own[int(margins[numbers].argmin())]
        if group.rule == "each":
            loss = own.mean()
        elif group.rule == "all":
            loss = (1 - lowest_share) * own.mean() + lowest_share * worst
        else:
            loss = worst
        total = total + group.weight * loss
    return total
