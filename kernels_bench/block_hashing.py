"""Hashes of a prompt's blocks, as an engine's prefix cache needs them for each request, by block size.

`pickled` is vLLM's rule: SHA-256 of the pickled parent's hash, the block's ids and its extra keys. `packed` hashes the
ids' bytes instead. Both chain, so that equal hashes mean equal prefixes.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kernels_bench.kernel import Arm, Cost, Kernel, Place, same

NO_PARENT = b"\0" * 32
BLOCK_SIZES = (16, 32, 64, 128)
TOKENS = {"tiny": 40, "full": 4000}

Hashes = list[bytes]
HashBlocks = Callable[[Sequence[int], int], Hashes]


def kernels(place: Place) -> Iterator[Kernel]:
    """Two prompts that part at three quarters: how many of their blocks are the same."""
    draw = np.random.default_rng(0)
    tokens = TOKENS[place.size]
    left = draw.integers(0, 32_000, tokens).tolist()
    right = left[: tokens * 3 // 4] + draw.integers(32_000, 64_000, tokens // 4).tolist()
    for block in BLOCK_SIZES:
        yield compare(left, right, block)


def compare(left: Sequence[int], right: Sequence[int], block: int) -> Kernel:
    cost = Cost(bytes=8 * (len(left) + len(right)))
    return Kernel(
        shape=f"2 x {len(left)} tokens, blocks of {block}",
        reference=Arm("pickled", lambda: shared_blocks(pickled, left, right, block), cost),
        candidates=(Arm("packed", lambda: shared_blocks(packed, left, right, block), cost),),
        check=same,
    )


def shared_blocks(hashed: HashBlocks, left: Sequence[int], right: Sequence[int], block: int) -> int:
    """Full blocks at the start that two prompts have in common: what a cache would find."""
    return sum(ours == theirs for ours, theirs in zip(hashed(left, block), hashed(right, block), strict=False))


def pickled(ids: Sequence[int], block: int) -> Hashes:
    hashes, parent = [], NO_PARENT
    for start in range(0, len(ids) - block + 1, block):
        content = pickle.dumps((parent, tuple(ids[start : start + block]), None), protocol=pickle.HIGHEST_PROTOCOL)
        parent = hashlib.sha256(content).digest()
        hashes.append(parent)
    return hashes


def packed(ids: Sequence[int], block: int) -> Hashes:
    content = np.asarray(ids, dtype=np.int64).tobytes()
    step = 8 * block
    hashes, parent = [], NO_PARENT
    for start in range(0, len(content) - step + 1, step):
        parent = hashlib.sha256(parent + content[start : start + step]).digest()
        hashes.append(parent)
    return hashes
