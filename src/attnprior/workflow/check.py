"""Proof that the Snakefile, `dvc.yaml` and `workflow/arms.yaml` declare the same work."""

import json
from collections import Counter
from collections.abc import Iterable

from attnprior.source import PREFIX
from attnprior.workflow import graph, sync
from attnprior.workflow.engines import Graph, Job, Stages
from attnprior.workflow.studyfiles import located


def jobs_of(stages: dict[str, list[str]], jobs: list[Job]) -> dict[str, list[Job]]:
    """Return {DVC stage: its Snakemake jobs}: those whose outputs lie in the stage's outs."""
    found: dict[str, list[Job]] = {name: [] for name in stages}
    owner = {out: name for name, outs in stages.items() for out in outs}
    for job in jobs:
        name = owner_of(job.outputs[0], owner)
        if name:
            found[name].append(job)
    return found


def owner_of(path: str, owner: dict[str, str]) -> str | None:
    """Return the stage whose out is `path` or a directory above it."""
    return next((owner[p] for p in _with_folders(path) if p in owner), None)


def _with_folders(path: str) -> list[str]:
    """Return `path` and the folders above it, the nearest first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]


def disagreements(params: dict, jobs: Graph, stages: Stages) -> list[str]:
    """Return one line for every difference between the two declarations (none if they agree).

    Compared for each DVC stage are the unions over its jobs: outputs, inputs that do not come from
    inside the stage, source files, and settings by file and key.
    """
    lines = [
        f"{path} does not follow from params.yaml: run `attnprior sync`" for path in sync.outdated(params)
    ]
    outs, deps, keys = stages.outs(), stages.deps(), stages.params()
    groups = jobs_of(outs, jobs.jobs)
    owned = {id(j) for group in groups.values() for j in group}
    lines += [f"only in the Snakefile: {j.key} ({j.outputs[0]})" for j in jobs.jobs if id(j) not in owned]
    for name, group in groups.items():
        if not group:
            lines.append(f"only in dvc.yaml: {name}")
            continue
        made = {f for j in group for f in j.outputs}
        lacking, idle = _unmatched(made, outs[name])
        lines += [
            f"{name}: {f} is made by {j.rule} but lies in no out of the stage"
            for j in group
            for f in j.outputs
            if f in lacking
        ]
        lines += [f"{name}: out {o} is made by no job" for o in idle]
        lacking, idle = _unmatched({f for j in group for f in j.inputs} - made, deps[name])
        lines += [f"{name}: deps lack {f}" for f in sorted(lacking)]
        lines += [f"{name}: dep {d} is read by no job" for d in idle]
        own = {k for j in group for k in json.loads(j.params)}
        used = {located(path, k) for path, found in graph.tracked(params, own).items() for k in found}
        lines += [f"{name}: params lack {k}" for k in sorted(used - set(keys[name]))]
        lines += [f"{name}: param {k} is read by no job" for k in sorted(set(keys[name]) - used)]
    return lines


def _unmatched(files: Iterable[str], declared: list[str]) -> tuple[set[str], list[str]]:
    """Return the files that no declared path is or holds, and the declared paths without any file."""
    known = set(declared)
    owners = {f: known.intersection(_with_folders(f)) for f in files}
    used = {p for found in owners.values() for p in found}
    return {f for f, found in owners.items() if not found}, [d for d in declared if d not in used]


def summary(jobs: Graph, stages: Stages) -> str:
    """Return a line on how much was compared."""
    by_rule = Counter(j.rule for j in jobs.jobs)
    code = {f for j in jobs.jobs for f in j.inputs if f.startswith(PREFIX)}
    counts = ", ".join(f"{n} {rule}" for rule, n in by_rule.items())
    stages_count = len(stages.names)
    return f"{len(jobs.jobs)} jobs ({counts}) and {stages_count} DVC stages agree on {len(code)} source files"
