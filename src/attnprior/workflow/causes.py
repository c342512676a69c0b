"""Why a job that is made again may give other bytes: what its two run.json say, side by side."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprior.files import sha256
from attnprior.source import PREFIX
from attnprior.workflow.recorded import Recorded

SHOWN = 3  # of many changed names


@dataclass(frozen=True)
class Changes:
    """What differs between a recorded job and the same job made again, by kind of fact."""

    facts: dict[str, tuple[str, ...]]  # kind -> what differs
    outputs: dict[str, str]  # of the recorded job: path -> SHA-256


def changes(recorded: Path | None, made: dict[str, Any]) -> Changes | None:
    """Return how the job `made` (its run.json) differs from the recorded run.json, None without one."""
    if recorded is None:
        return None
    old = json.loads(recorded.read_text(encoding="utf-8"))
    before, after = old["inputs"], made["inputs"]
    paths = sorted(p for p in {*before, *after} if before.get(p) != after.get(p))
    settings = sorted(_settings(json.loads(old["params"]), json.loads(made["params"])))
    packages = {*old["versions"], *made["versions"]}
    facts = {
        "parameters": tuple(settings),
        "code": tuple(p for p in paths if p.startswith(f"{PREFIX}/")),
        "input": tuple(p for p in paths if not p.startswith(f"{PREFIX}/")),
        "versions": tuple(
            f"{p} {old['versions'].get(p)} → {made['versions'].get(p)}"
            for p in sorted(packages)
            if old["versions"].get(p) != made["versions"].get(p)
        ),
        "device": (f"{old['device']} → {made['device']}",) if old["device"] != made["device"] else (),
        "threads": (f"{old['threads']} → {made['threads']}",) if old["threads"] != made["threads"] else (),
    }
    return Changes({k: v for k, v in facts.items() if v}, old["outputs"])


def _settings(old: Any, new: Any, name: str = ""):
    """Yield "key: old → new" of each setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {*old, *new}:
            yield from _settings(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
    elif old != new:
        yield f"{name} {json.dumps(old)} → {json.dumps(new)}"


def summary(changed: Mapping[str, Changes]) -> list[str]:
    """Return a line for each kind of fact that differs in some job."""
    kinds: dict[str, dict[str, None]] = {}
    for found in changed.values():
        for kind, names in found.facts.items():
            kinds.setdefault(kind, {}).update(dict.fromkeys(names))
    return [f"{kind}: {_short(list(names))}" for kind, names in kinds.items() if kind != "input"]


def likely(artifact: str, job: str, changed: Mapping[str, Changes], recorded: Recorded) -> str:
    """Return the likely cause of the first difference of a verification."""
    found = changed.get(job)
    if found is None:
        return "unknown, since the recorded run.json of the job is not at hand"
    reference = recorded.find(artifact)
    if reference is not None and sha256(reference) != found.outputs.get(artifact):
        return f"the recorded {artifact} is not what the job wrote (its run.json has another hash)"
    if not found.facts:
        return "none that is recorded: parameters, code, inputs, versions, device and threads are the same"
    return "; ".join(f"{kind}: {_short(names)}" for kind, names in found.facts.items())


def _short(names) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
