"""Changes that no job may see, made many at once: what all of them leave as it is, each of them does.

An effect of one change would show in the plan for all, unless another change in the same group took it back:
none does, since each is of a key or file of its own, and what is undone is not taken (`settings`). A group
that would make anything again says nothing about its members: they are then judged one by one.
"""

import json
from collections.abc import Iterator

from attnprior.workflow import params as checks
from attnprior.workflow import studyfiles
from attnprior.workflow.engines import Graph
from tests.workflow import mutations

NAMED = (*studyfiles.REGISTRIES, "scales")


def used(graph: Graph) -> set[str]:
    """Return the files and the entries of settings that any job gets."""
    return {f for j in graph.jobs for f in j.inputs} | {k for j in graph.jobs for k in json.loads(j.params)}


def is_idle(kind: str, name: str, used: set[str]) -> bool:
    """Return whether no job gets the module, or the entry in which the key stands."""
    if kind == "key":
        section, _, rest = name.partition(".")
        return section in NAMED and f"{section}.{rest.partition('.')[0]}" not in used
    return kind == "module" and name not in used


def settings(params: dict, schema: dict, keys: list[str]) -> Iterator[tuple[list[str], dict | None]]:
    """Yield keys with settings in which all of them differ, until each key had its turn.

    With None instead of settings comes a key that can take no other value.
    """
    while keys:
        changed, taken, later = params, [], []
        for key in keys:
            other = changed
            if _differs(changed, params, key) is False:  # not yet changed, or removed, with another key
                other = mutations.mutated(changed, schema, key)
            if other is not None and all(_differs(other, params, k) for k in [*taken, key]):
                changed = other
                taken.append(key)
            else:
                later.append(key)
        if taken:
            yield taken, changed
        else:
            yield [later.pop(0)], None
        keys = later


def _differs(changed: dict, params: dict, key: str) -> bool | None:
    """Return whether a key has another value; None if it is gone."""
    try:
        return checks.subtree(changed, key) != checks.subtree(params, key)
    except (KeyError, TypeError):
        return None
