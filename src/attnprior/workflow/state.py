"""Whether a job's files are what its present inputs, settings and code make: judged by content alone.

Each job writes `run.json` last, with the hashes of its inputs and outputs and its settings. That
record travels with the files (DVC versions it), so the judgement is the same after a clone, a
checkout, a touched file, a killed run or a lost `.snakemake` folder, where time stamps and
Snakemake's own metadata are not to be trusted.
"""

import json
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import sealed, sha256
from attnprior.workflow.engines import Job


class Hashes:
    """SHA-256 of files, each read once per size and time stamp."""

    def __init__(self) -> None:
        self._known: dict[tuple, str] = {}

    def of(self, path: str) -> str | None:
        """Return the hash of `path`, or None if it is missing or unreadable."""
        try:
            stat = Path(path).stat()
            key = (path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
            if key not in self._known:
                self._known[key] = sha256(path)
            return self._known[key]
        except (OSError, UserError):
            return None


def stale_because(job: Job, hashes: Hashes) -> str | None:
    """Return why the files of `job` are not current, or None if they are."""
    missing = [p for p in job.outputs if not Path(p).is_file()]
    if missing:
        return f"missing {missing[0]}"
    try:
        record = json.loads(Path(job.run_json).read_text(encoding="utf-8"))
        inputs, outputs, params = record["inputs"], record["outputs"], record["params"]
        if sealed(record)["digest"] != record["digest"]:
            return f"damaged {job.run_json}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"unreadable {job.run_json}"
    if params != job.params:
        return "changed parameters"
    if set(inputs) != set(job.inputs):
        return "other set of inputs"
    for path in job.inputs:
        if hashes.of(path) != inputs[path]:
            return f"changed {path}"
    for path in job.outputs:
        if path != job.run_json and hashes.of(path) != outputs.get(path):
            return f"damaged {path}"
    return None


def downstream(jobs: list[Job], stale: set[str]) -> list[Job]:
    """Return the jobs in `stale` (by key) and all that depend on them, in topological order."""
    planned: set[str] = set()
    for job in jobs:
        if job.key in stale or any(u.key in planned for u in job.upstream):
            planned.add(job.key)
    return [j for j in jobs if j.key in planned]
