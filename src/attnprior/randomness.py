"""Named random streams: every draw is a function of (seed, purpose, indices), never of history.

A resumed run therefore draws what the uninterrupted run would have drawn, and adding a draw for
one purpose leaves all others unchanged.
"""

import hashlib


def stream_seed(seed: int, purpose: str, *indices: int) -> int:
    """Return the 63-bit seed of the stream named by `purpose` and `indices` (epoch, step, layer)."""
    name = ":".join([str(int(seed)), purpose, *(str(int(i)) for i in indices)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *indices: int):
    """Return a fresh CPU `torch.Generator` for the stream named by `purpose` and `indices`.

    Draws are made on the CPU and moved, so that every device sees the same numbers.
    """
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, purpose, *indices))
