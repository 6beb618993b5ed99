"""The label head: all of the vocabulary's logits, against the rows of the two labels alone.

Both give the probability of the first label, renormalised over the labels. Only the full head also gives the labels'
mass under the whole vocabulary, which says whether a model wanted to answer at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels_bench.kernel import Arm, Cost, Kernel, Place, close

# (requests, hidden, vocabulary): those of a 135M and of a 7B model.
SHAPES = {"tiny": ((5, 8, 40),), "full": ((64, 576, 49_152), (64, 4096, 32_000))}
LABELS = (3, 7)


def kernels(place: Place) -> Iterator[Kernel]:
    dtype = getattr(torch, place.dtype)
    for requests, hidden, vocabulary in SHAPES[place.size]:
        states = torch.randn(requests, hidden, device=place.device).to(dtype)
        head = (torch.randn(vocabulary, hidden, device=place.device) / hidden**0.5).to(dtype)
        labels = torch.tensor(LABELS, device=place.device)
        yield compare(states, head, labels)


def compare(states: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> Kernel:
    """States (requests, hidden) of each prompt's last token, head (vocabulary, hidden), labels (2,)."""
    (requests, hidden), vocabulary = states.shape, head.shape[0]
    return Kernel(
        shape=f"{requests} requests, {hidden} x {vocabulary}",
        reference=Arm(
            "full vocabulary",
            lambda: full_vocabulary(states, head, labels),
            _cost(states, requests, hidden, vocabulary),
        ),
        candidates=(
            Arm("label rows", lambda: label_rows(states, head, labels), _cost(states, requests, hidden, len(labels))),
        ),
        check=close,
    )


def full_vocabulary(states: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """P(first label), (requests,), from log-probabilities under the whole vocabulary, as an engine gives them."""
    logprobs = (states @ head.T).float().log_softmax(-1)[:, labels]
    return logprobs.softmax(-1)[:, 0]


def label_rows(states: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same from the labels' logits alone: the normaliser cancels."""
    return (states @ head[labels].T).float().softmax(-1)[:, 0]


def _cost(states: torch.Tensor, requests: int, hidden: int, rows: int) -> Cost:
    numbers = requests * hidden + rows * hidden + requests * rows
    return Cost(2.0 * requests * hidden * rows, states.element_size() * numbers)
