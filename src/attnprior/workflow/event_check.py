"""Damage in event logs: what in them is not as a job wrote it, and rows taken from the job's history.csv.

A kill leaves half a line before the next `start` event or at the end of a log; nothing else should.
"""

import csv
import json
import math
from datetime import datetime
from pathlib import Path

from attnprior.errors import tell
from attnprior.files import digest
from attnprior.workflow.eventlogs import LoggedJob

START = 600.0  # seconds, at most, from the start of a process to its `start` event


def check(root: Path, name: str, jobs: list[LoggedJob]) -> None:
    """Correct the rows of finished jobs by their history.csv and warn in one line of what is damaged.

    history.csv is an artifact, judged by its hash. Rows that a full disk kept from the log come from it, too,
    and without a warning those before a resumed epoch: Snakemake removes the log of a job that it runs again.
    """
    problems = []
    for job in jobs:
        if digest(job.start.get("params") or {}) != job.start.get("params_digest"):
            problems.append("the settings do not agree with their digest")
        if job.end is not None and job.end.get("status") == "finished" and not job.replaced:
            changed = _correct(root, job)
            if changed:
                problems.append(f"steps {', '.join(map(str, changed[:5]))} are taken from history.csv")
    if jobs and jobs[0].torn:
        problems.append(f"line {jobs[0].torn} is no event")
    if problems:
        tell(
            f"warning: {name}: damaged ({'; '.join(problems)}); results are not affected,"
            " MLflow gets what can be read"
        )


def _correct(root: Path, job: LoggedJob) -> list[int]:
    """Bring the rows of `job` into agreement with its history.csv and return the steps that changed."""
    history = next((p for p in _artifacts(root, job) if p.endswith("/history.csv")), None)
    rows = _rows(root / history) if history else {}
    changed = []
    for event in job.events:
        row = rows.get(event.get("step")) if event["event"] == "metrics" else None
        if row is not None and not _equal(row, event["values"]):
            event["values"] = row
            changed.append(event["step"])
    logged = {e["step"] for e in job.events if e["event"] == "metrics"}
    if "lr" in next(iter(rows.values()), {}):  # an impulse fit logs some rows only
        for step in sorted(rows.keys() - logged):
            at = _place(job.events, step)
            event = {"event": "metrics", "step": step, "values": rows[step], "filled": True}
            event["time"] = job.events[at - 1]["time"]  # nobody knows it: after what stands before
            job.events.insert(at, event)
            job.lines.insert(at, json.dumps(event).encode())
            job.filled = True
            if step > job.start.get("resumed_epoch", 0):
                changed.append(step)
    return changed


def _place(events: list[dict], step: int) -> int:
    """Return where a row of `step` belongs: before the first row of a later step, else before the end."""
    later = (i for i, e in enumerate(events) if e["event"] == "metrics" and e["step"] > step)
    return next(later, len(events) - 1)


def _artifacts(root: Path, job: LoggedJob) -> list[str]:
    """Return the artifacts that a finished job left, if those on disk are still its own (by its run.json)."""
    found = [p for p in (job.end or {}).get("artifacts", []) if isinstance(p, str)]
    try:
        record = json.loads((root / found[-1]).read_text(encoding="utf-8"))
        started = datetime.fromisoformat(record["started"]).timestamp()
        same = record["invocation"] == job.latest_start.get("invocation")
        return found if same and abs(started - job.latest_start["time"]) < START else []
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return []


def _rows(path: Path) -> dict:
    try:
        with open(path, newline="", encoding="utf-8") as f:
            table = list(csv.DictReader(f))
        at = "epoch" if table and "epoch" in table[0] else "step"
        return {int(r[at]): {k: float(v) for k, v in r.items() if k not in ("epoch", "step")} for r in table}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return {}  # a damaged history is made again by the next run


def _equal(row: dict[str, float], values: dict) -> bool:
    finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
    return finite == values
