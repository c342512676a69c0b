"""What `attnprior trace` prints: the file, the numbers, and the jobs as an indented tree."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from attnprior.workflow.cells import Cell
from attnprior.workflow.lineage import Lineage, Made
from attnprior.workflow.mlflow_find import LOCAL_PAGES

SHORT = 12  # digits of a hash
SHOWN = 3  # of many names
Facts = dict[str, dict[str, Any]]


def file_lines(about: dict[str, Any], lineage: Lineage) -> Iterator[str]:
    """Yield what is said of the file itself."""
    digest = about["sha256"]
    yield f"{about['path']}  {'sha256 ' + digest if digest else 'is not here'}"
    if digest and not about["as_written"]:
        yield f"  ! changed after {about['job']} wrote it: what follows is about the file as it was then"
    stage = about["recorded_by_dvc"]
    yield f"  made by {about['job']}; " + (f"DVC stage {stage}" if stage else "not recorded in dvc.lock")


def cell_lines(cells: list[Cell]) -> Iterator[str]:
    """Yield each row with its numbers, how they were made, and the values they were made from."""
    for row in dict.fromkeys(c.row for c in cells):
        mine = [c for c in cells if c.row == row]
        yield f"\n{row}"
        groups: dict[tuple[str, str], dict[int, Any]] = {}
        for value in (v for c in mine for v in c.values):
            groups.setdefault((value.arm, value.measure), {})[value.seed] = value
        for (arm, measure), by_seed in groups.items():
            first = next(iter(by_seed.values())).path
            folder = PurePosixPath(first).parent.name
            seeds = ",".join(map(str, by_seed))
            where = first.replace(f"/{folder}/", f"/seed{{{seeds}}}/") if len(by_seed) > 1 else first
            yield f"  {measure} of {arm}: {', '.join(_value(v.value) for v in by_seed.values())}  ({where})"
        width, wide = max(len(c.column) for c in mine), max(len(str(c.value)) for c in mine)
        for c in mine:
            same = f"! recomputed: {c.recomputed}"
            if c.recomputed in (None, c.value):
                same = "not recomputed" if c.recomputed is None else "recomputed: equal"
            yield f"  {c.column:{width}}  {c.value!s:{wide}}  {c.meaning}; {same}"


def _value(value: Any) -> str:
    return "not here" if value is None else str(value)


def tree(lineage: Lineage, job: Made, facts: Facts, only: set[str] | None, code: bool) -> Iterator[str]:
    """Yield the jobs behind `job`, each described once; a fact that repeats names the job that has it."""
    said: dict[tuple[str, str], str] = {}  # (kind of fact, text) -> job that showed it
    shown: set[str] = set()

    def node(at: Made, files: list[str], first: str, rest: str, chosen: set[str] | None) -> Iterator[str]:
        title = f"{at.name}{'  → ' + ', '.join(files) if files else ''}"
        if at.name in shown:
            yield f"{first}{title}  (above)"
            return
        shown.add(at.name)
        yield f"{first}{title}"
        children: dict[str, tuple[Made, list[str]]] = {}
        orphans = []
        for path, read, source in lineage.inputs(at):
            if chosen is not None and path not in chosen:
                continue
            if source is None:
                orphans.append(f"{path} {read[:SHORT]}")
            else:
                name = PurePosixPath(path).name
                children.setdefault(source.name, (source, []))[1].append(f"{name} {read[:SHORT]}")
        bar = f"{rest}{'│' if children else ' '}   "
        for line in _about(facts[at.name], said, code):
            yield bar + line
        for orphan in orphans:
            yield f"{bar}! read {orphan}, known to no job"
        for number, (source, names) in enumerate(children.values(), 1):
            last = number == len(children)
            branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
            yield from node(source, names, rest + branch, rest + below, None)

    yield from node(job, [], "", "", only)


def _about(fact: dict[str, Any], said: dict[tuple[str, str], str], code: bool) -> Iterator[str]:
    """Yield the lines on one job."""
    seconds = (fact["seconds"] or {}).get("total")
    seed = fact["wildcards"].get("seed")
    made = [f"started {fact['started']}", f"{seconds} s", *([] if seed is None else [f"seed {seed}"])]
    if (fact["attempts"] or 1) > 1:
        made.append(f"resumed, {fact['attempts']} attempts")
    yield ", ".join(made)
    blocks = {
        "commit": _commit(fact["commit"], len(fact["code"]["files"])),
        "code": f"{fact['code']['digest'][:SHORT]} ({len(fact['code']['files'])} files)",
        "settings": _settings(fact["settings"]),
        "machine": _machine(fact),
    }
    repeated: dict[str, list[str]] = {}
    for kind, text in blocks.items():
        first = said.setdefault((kind, text), fact["job"])
        if first != fact["job"]:
            repeated.setdefault(first, []).append(kind)
            continue
        yield from f"{kind}: {text}".replace(" \n", "\n").split("\n")
        if kind == "code" and code:
            yield from (f"  {h[:SHORT]} {path}" for path, h in fact["code"]["files"].items())
    for first, kinds in repeated.items():
        yield f"{', '.join(kinds)}: as {first}"
    if run := fact.get("mlflow"):
        yield f"MLflow: {run['url']}" + (" (attnprior ui)" if run["url"].startswith(LOCAL_PAGES) else "")
    for problem in fact["problems"]:
        yield f"! {problem}"


def _commit(commit: dict[str, Any], files: int) -> str:
    if commit["id"] is None:
        return "unknown"
    if commit["title"] is None:
        text = f"{commit['id'][:SHORT]}, which is not in this repository"
    else:
        text = f"{commit['id'][:SHORT]} ({commit['title']})"
    other = commit["other_code"]
    if commit["dirty"]:
        text += "; with uncommitted changes"
        if other:
            more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
            text += f" in {len(other)} of its {files} source files: {', '.join(other[:SHOWN])}{more}"
        elif other is not None:
            text += " elsewhere: its source files are those of the commit"
    elif other:
        text += f"; ! {other[0]} and {len(other) - 1} more are not those of the commit"
    if commit["in_head"] is not None and (commit["dirty"] or other):
        text += "; HEAD has exactly this code" if commit["in_head"] else "; HEAD has other code"
    return text


def _settings(settings: dict[str, Any]) -> str:
    return "".join(f"\n  {key} {_plain(value)}" for key, value in settings.items()) or "none"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace('"', "")


def _machine(fact: dict[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in sorted((fact["versions"] or {}).items()))
    threads = fact["threads"]
    return f"{fact['device']}, {threads} thread{'s' if threads != 1 else ''}; {versions}"
