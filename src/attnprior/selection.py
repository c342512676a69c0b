"""Which layers and heads a transfer concerns, and how much its loss weighs. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any


def layer_pairs(layers: Mapping[str, Any], student: int, teacher: int) -> list[tuple[int, int]]:
    """Return (student's layer, teacher's layer) of every chosen layer, from 0, for two depths.

    `first` and `list` count from the start in both networks, `last` from the end in both.
    """
    if "first" in layers:
        return [(i, i) for i in range(layers["first"])]
    if "last" in layers:
        return [(student - i, teacher - i) for i in range(layers["last"], 0, -1)]
    return [(i, i) for i in layers["list"]]


def head_numbers(heads: str | Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the chosen heads of `count`, from 0; head i of the teacher belongs to head i of the student."""
    if isinstance(heads, str):
        return tuple(range(count))
    return tuple(heads["list"]) if "list" in heads else tuple(range(heads["first"]))


def weight_at(weight: float | Mapping[str, Any], epoch: int, epochs: int) -> float:
    """Return lambda in an epoch, from 0: `from` in the first of `epochs`, `to` in the last.

    In between it moves along a line or half a cosine. A plain number is the same in all of them.
    """
    if not isinstance(weight, Mapping):
        return weight
    done = epoch / (epochs - 1) if epochs > 1 else 0.0
    if weight["schedule"] == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return weight["from"] + (weight["to"] - weight["from"]) * done
