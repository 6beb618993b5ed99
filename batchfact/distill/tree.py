"""Many prompts that begin alike as one sequence: their common beginning once, then each prompt's own end as a branch.

Token ids of prompts and their completions flow in; the tensors of one forward pass flow out, with the attention that
keeps branches apart. It knows nothing of documents, labels or losses.

A branch's positions go on from the prefix, and its tokens see the prefix and the branch before them, so that every
logit is what the prompt alone would give. Summaries of one document cost the document once, in training as in scoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

ATTENTION = "batchfact_tree"
"""The name under which transformers finds `attend`."""


class Branch(Struct, frozen=True):
    """The ids of one prompt and of what the model shall write after it, at least one each."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class Tree(Struct, frozen=True, kw_only=True):
    """One forward pass and what it is for.

    `inputs` are arguments of the model's forward; its logits are then (1, num_targets, vocab), one row for each token
    of each completion, branch after branch. `targets` (num_targets,) are these tokens, `branch_of` (num_targets,) their
    branches, and `last` (num_branches,) the row of each branch's last one.
    """

    inputs: dict[str, Any]
    targets: torch.Tensor
    branch_of: torch.Tensor
    last: torch.Tensor


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all prompts begin; each keeps at least one token of its own."""
    shortest = min(map(len, prompts))
    first = prompts[0]
    for place in range(shortest - 1):
        if any(prompt[place] != first[place] for prompt in prompts):
            return place
    return shortest - 1


def num_tokens(branches: Sequence[Branch]) -> int:
    """Tokens of the tree that `grow` makes; a completion's last token is only ever predicted."""
    prefix = common_prefix([branch.prompt for branch in branches])
    return prefix + sum(len(branch.prompt) - prefix + len(branch.completion) - 1 for branch in branches)


def grow(branches: Sequence[Branch]) -> Tree:
    """Lay out prompts and completions as one sequence."""
    prefix = common_prefix([branch.prompt for branch in branches])
    own = [[*branch.prompt[prefix:], *branch.completion[:-1]] for branch in branches]
    sizes = torch.tensor([len(ids) for ids in own])
    starts = sizes.cumsum(0) - sizes
    places = torch.arange(int(sizes.max()))
    is_token = places[None] < sizes[:, None]
    num_targets = torch.tensor([len(branch.completion) for branch in branches])
    ends = prefix + starts + sizes
    kept = [torch.arange(int(end - num), int(end)) for end, num in zip(ends, num_targets, strict=True)]
    return Tree(
        inputs={
            "input_ids": torch.tensor([[*branches[0].prompt[:prefix], *(each for ids in own for each in ids)]]),
            "position_ids": torch.tensor([[*range(prefix), *(prefix + at for ids in own for at in range(len(ids)))]]),
            "logits_to_keep": torch.cat(kept),
            "branch_places": torch.where(is_token, starts[:, None] + places[None], 0),
            "is_branch_token": is_token,
        },
        targets=torch.tensor([each for branch in branches for each in branch.completion]),
        branch_of=torch.repeat_interleave(torch.arange(len(branches)), num_targets),
        last=num_targets.cumsum(0) - 1,
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    branch_places: torch.Tensor,
    is_branch_token: torch.Tensor,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over one tree, as transformers calls it.

    Args:
        query, key, value: (1, heads, tokens, head_dim); key and value may have fewer heads.
        branch_places: (branches, longest) places among the tokens behind the prefix, with `is_branch_token` of the same
            shape for what is padding.
    Returns: (1, tokens, heads, head_dim).
    Raises: ValueError for a kind of attention that a tree does not have: a sliding window, or capped logits.
    """
    del module, attention_mask
    if unknown := [name for name in ("sliding_window", "softcap") if settings.get(name) is not None]:
        raise ValueError(f"models with {unknown[0]} cannot be trained in document trees")
    heads, dim, kv_heads = query.shape[1], query.shape[3], key.shape[1]
    share, (branches, longest) = heads // kv_heads, branch_places.shape
    prefix = query.shape[2] - int(is_branch_token.sum())
    scale = dim**-0.5 if scaling is None else scaling
    of_prefix = functional.scaled_dot_product_attention(
        query[:, :, :prefix],
        key[:, :, :prefix],
        value[:, :, :prefix],
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    flat = branch_places.view(-1)
    q = query[0, :, prefix:][:, flat].view(kv_heads, share, branches, longest, dim) * scale
    k, v = (each[0, :, prefix:][:, flat].view(kv_heads, 1, branches, longest, dim) for each in (key, value))
    to_prefix = q.reshape(kv_heads, -1, dim) @ key[0, :, :prefix].transpose(1, 2)
    to_prefix = to_prefix.view(kv_heads, share, branches, longest, prefix)
    seen = torch.ones(longest, longest, dtype=torch.bool, device=q.device).tril()
    to_branch = (q @ k.transpose(-1, -2)).masked_fill(~seen, -torch.inf)
    weights = torch.softmax(torch.cat([to_prefix, to_branch], dim=-1), dim=-1).to(v.dtype)
    from_prefix = weights[..., :prefix].reshape(kv_heads, -1, prefix) @ value[0, :, :prefix]
    mixed = from_prefix.view(kv_heads, share, branches, longest, dim) + weights[..., prefix:] @ v
    of_branches = mixed.reshape(heads, -1, dim)[:, is_branch_token.view(-1)]
    return torch.cat([of_prefix[0], of_branches], dim=1).transpose(0, 1)[None], None


def use_trees(model: Any) -> None:
    """Have a causal language model of transformers attend over trees; it then takes nothing else.

    Raises: ValueError for a model whose attention cannot be exchanged.
    """
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, no_mask)
    model.set_attn_implementation(ATTENTION)


def no_mask(*_: Any, **__: Any) -> None:
    """`attend` makes its own."""
