"""The redundancy condition of channel mixing, on tokens of trained networks.

With tokens X (N, C) of rank k and filters that span all f x f filters, mixing channels can give every output
channel any k filters if C >= k f^2 (arXiv 2401.12511, section 3; proposition 1 of arXiv 2404.01139).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Ranks are counted twice. The condition is on the exact rank, so the strict tolerance counts what float32 can
# tell from zero (NumPy's rule for matrix_rank). The loose one leaves out directions below 1 per cent of the
# strongest, which favours the condition: where it fails even then, it fails for every stricter reading.
LOOSE = 0.01
TOLERANCES = ("loose", "strict")
DEFAULT_SIZE = 3  # of filters, where no arm of a study names one
COLUMNS = (
    *("dataset", "arm", "kind", "seed", "images", "layer", "channels", "tokens", "tolerance"),
    *("rank_mean", "rank_min", "rank_max", "filter_size", "holds"),
)


@dataclass(frozen=True)
class Entering:
    """The tokens that enter each layer of one network, for n images."""

    kind: str  # student | teacher
    dataset: str
    name: str
    seed: int
    channels: int  # C
    tokens: int  # N, without a class token
    values: np.ndarray  # (layers, n, min(N, C)): singular values over the largest of each matrix

    @property
    def most(self) -> int:
        """The largest rank there can be."""
        return min(self.tokens, self.channels)

    def tolerance(self, which: str) -> float:
        """Return the share of the largest singular value above which one counts."""
        if which == "loose":
            return LOOSE
        return float(np.finfo(np.float32).eps) * max(self.tokens, self.channels)

    def ranks(self, which: str) -> np.ndarray:
        """Return the rank of each matrix, int (layers, n)."""
        return (self.values > self.tolerance(which)).sum(-1)


def redundant(channels: int, rank: int | np.ndarray, filter_size: int) -> bool | np.ndarray:
    """Return whether `channels` suffice for tokens of this rank: C >= k f^2."""
    return channels >= rank * filter_size**2


def holds(network: Entering, which: str, size: int) -> np.ndarray:
    """Return whether the condition holds for every image, bool (layers,)."""
    return np.asarray(redundant(network.channels, network.ranks(which).max(1), size))


def table(networks: Sequence[Entering], sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows of redundancy.csv, with the keys COLUMNS.

    One for each network, layer, tolerance and filter size. Layers are numbered from 1; `holds` is 1
    where C >= k f^2 for every image, else 0.
    """
    for one in networks:
        who = {"dataset": one.dataset, "arm": one.name, "kind": one.kind, "seed": one.seed}
        who |= {"images": one.values.shape[1], "channels": one.channels, "tokens": one.tokens}
        ranks = {which: one.ranks(which) for which in TOLERANCES}
        for layer in range(len(one.values)):
            for which in TOLERANCES:
                k = ranks[which][layer]
                found = {"layer": layer + 1, "tolerance": one.tolerance(which), "rank_mean": float(k.mean())}
                found |= {"rank_min": int(k.min()), "rank_max": int(k.max())}
                for size in sizes:
                    held = int(redundant(one.channels, int(k.max()), size))
                    yield {**who, **found, "filter_size": size, "holds": held}
