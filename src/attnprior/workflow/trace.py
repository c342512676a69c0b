"""`attnprior trace`: the chain of jobs behind a file or a number of a table, down to the data set."""

import json
from dataclasses import asdict
from pathlib import Path

from attnprior.errors import UserError, nearest
from attnprior.workflow import params
from attnprior.workflow.cells import TABLES, Cell, table_of
from attnprior.workflow.lineage import Lineage, Made, local_path
from attnprior.workflow.mlflow_find import find_runs
from attnprior.workflow.recorded import LOCK
from attnprior.workflow.trace_text import cell_lines, file_lines, tree


def trace(target: list[str], *, code: bool, as_json: bool) -> int:
    """Print where a file or number comes from; return 0, or 1 if a file is not what its job wrote.

    Raises:
        UserError: there is no such file, row or column, or no job is known to have made it.
    """
    lineage = Lineage()
    path, row, column = _parsed(target)
    if row is None:
        cells: list[Cell] = []
        job = _producer(lineage, path)
        only = None
    else:
        table = table_of(lineage, path)
        cells = table.cells(row, column)
        job = _producer(lineage, path)
        only = {v.path for cell in cells for v in cell.values}
        if column is not None:  # all numbers of an arm would bring all arms along, for Holm's correction
            only |= {p for cell in cells for p in cell.also}
    chain = lineage.chain(job, only)
    facts = {name: lineage.facts(made) for name, made in chain.items()}
    for name, run in find_runs([made.record for made in chain.values()]).items():
        facts[name]["mlflow"] = run
    problems = [p for fact in facts.values() for p in fact["problems"]]
    if row is not None and table.problem:
        problems.append(f"the numbers cannot be made again: {table.problem}")
    wrong = [c for c in cells if c.recomputed not in (None, c.value)]
    problems += [f"{c.table}:{c.row}:{c.column} is {c.value}, its runs give {c.recomputed}" for c in wrong]
    about = {
        "path": path,
        "sha256": lineage.sha256(path),
        "job": job.name,
        "recorded_by_dvc": _stage_of(path),
        "as_written": not lineage.is_changed(job, path),
    }
    if as_json:
        shown = {"file": about, "cells": [asdict(c) for c in cells], "jobs": facts, "problems": problems}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return int(bool(problems))
    for line in [*file_lines(about, lineage), *cell_lines(cells), "", *tree(lineage, job, facts, only, code)]:
        print(line)
    if problems:
        print(f"\n{len(problems)} problem{'s' if len(problems) > 1 else ''}:")
        for problem in problems:
            print(f"  {problem}")
    else:
        print(
            f"\n{len(facts)} job{'s' if len(facts) > 1 else ''}; every file on the way is as its job wrote it"
        )
    return int(bool(problems))


def _parsed(target: list[str]) -> tuple[str, str | None, str | None]:
    """Return (file, row, column) of FILE, TABLE:ROW[:COLUMN] or STUDY ARM [COLUMN]."""
    if len(target) == 1:
        path, *rest = target[0].split(":")
        if len(rest) > 2 or Path(target[0]).exists():
            return local_path(target[0]), None, None
        row, column = (*rest, None, None)[:2]
        return local_path(path), row, column or None
    if len(target) > 3:
        raise UserError("trace takes a FILE, TABLE.csv:ROW[:COLUMN] or STUDY ARM [COLUMN]")
    study, arm, column = (*target, None)[:3]
    assert study is not None
    folders = sorted(p.parent.name for p in Path("results").glob("*/table.csv"))
    if study not in folders:
        known = sorted({*folders, *params.load()["studies"]})
        raise UserError(
            f"no table of a study {study!r}{nearest(study, known)}; with tables: "
            f"{', '.join(folders) or 'none, `dvc pull` or `attnprior run`'}"
        )
    return f"results/{study}/table.csv", arm, column


def _producer(lineage: Lineage, path: str) -> Made:
    job = lineage.producer(path)
    if job is not None:
        return job
    stage = _stage_of(path)
    if stage is not None and not Path(path).exists():
        raise UserError(f"{path}: not here, but {LOCK} records it (stage {stage}); `dvc pull` brings it")
    if not Path(path).exists():
        hint = f"; cells: {'|'.join(TABLES)}:ROW:COLUMN" if ":" in path else ""
        raise UserError(f"{path}: no such file, and no job is known to make it{hint}")
    raise UserError(f"{path}: known to no job (no run.json beside or above names it)")


def _stage_of(path: str) -> str | None:
    """Return the stage of `dvc.lock` that has `path` among its outs, if one has."""
    stages = (params.read_yaml(LOCK) or {}).get("stages", {}) if Path(LOCK).is_file() else {}
    for name, stage in stages.items():
        for out in stage.get("outs", []):
            if path == out["path"] or path.startswith(f"{out['path']}/"):
                return name
    return None
