"""Which of the processes of one training this is, as torchrun says it, and how many a job wants."""

import os
from typing import Any

from attnprior.recipe_keys import merged


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return the number of processes of this training."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leads() -> bool:
    """Return whether this process is the one that evaluates, saves and writes."""
    return rank() == 0


def wanted(params: dict[str, Any]) -> int:
    """Return how many processes a job asks for, from its own settings (dotted key -> value).

    Raises:
        UserError: an override names no recipe key.
    """
    recipe: dict[str, Any] = next((v for k, v in params.items() if k.startswith("recipes.")), {})
    student = next((k for k in params if k.startswith("students.")), None)
    overrides = params[student].get("overrides", {}) if student else {}
    return merged(recipe, overrides, f"{student}.overrides").get("processes", 1)


def without_sharing(values: Any) -> Any:
    """Return settings without the keys, at any depth, that say how processes share a training."""
    if not isinstance(values, dict):
        return values
    return {k: without_sharing(v) for k, v in values.items() if k not in ("processes", "sharded")}
