"""One line for everything that keeps a run from finishing."""

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from attnprior.workflow.engines import Job

ROOM = 2**20  # bytes: a disk with less is full


def explain(unfinished: list[Job], invocation: str, log: Path, returncode: int) -> None:
    """Print one line for each failed job, or for Snakemake's own failure, and where the whole log is."""
    failed, blamed = 0, _failed_outputs(log)
    for job in unfinished:
        error = job_error(job, invocation)
        if error is None and job.outputs[0] in blamed:
            error = "killed from outside before it could say why (memory?); it is resumed by `attnprior run`"
        if error:
            failed += 1
            print(f"error: {job.key}: {error} (log: {job.logs['text']})", file=sys.stderr)
    if not failed:
        print(f"error: snakemake {_own_failure(log, returncode)}", file=sys.stderr)
    for folder in full_disks(unfinished):
        print(f"error: {folder}: the disk is full; free space, then `attnprior run` goes on", file=sys.stderr)
    print(f"attnprior: {len(unfinished)} jobs not finished; Snakemake's log: {log}", file=sys.stderr)


def _failed_outputs(log: Path) -> set[str]:
    """Return the outputs of the jobs that failed by Snakemake's log; a killed one cannot say so itself."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for block in log.read_text(encoding="utf-8", errors="replace").split("Error in rule ")[1:]:
            line = next((s for s in block.splitlines() if s.strip().startswith("output: ")), "")
            found |= {s.strip() for s in line.partition("output: ")[2].split(",")}
    return found


def _own_failure(log: Path, returncode: int) -> str:
    if returncode < 0:
        return f"was killed ({signal.Signals(-returncode).name}); `attnprior run` goes on where it was"
    said = []
    with contextlib.suppress(OSError):
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"failed: {said[-1].strip() if said else 'no output'}"


def full_disks(jobs: Iterable[Job]) -> list[Path]:
    """Return the folders of this checkout, one for each disk, on which there is no room."""
    folders = {Path("."), *(Path(f).parent for j in jobs for f in [*j.outputs, *j.logs.values()])}
    found: dict[int, Path] = {}
    for folder in sorted(folders):
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < ROOM:
                found.setdefault(folder.stat().st_dev, folder.resolve())
    return list(found.values())


def explain_stop(unfinished: int, planned: int) -> None:
    """Print the line of a run that was stopped by a signal."""
    print(
        f"error: stopped; {unfinished} of {planned} jobs not finished, `attnprior run` goes on with them",
        file=sys.stderr,
    )


def job_error(job: Job, invocation: str | None = None) -> str | None:
    """Return the one-line error of a job's last attempt, if it failed (in the given invocation)."""
    current, error = attempt(job)
    return error if invocation is None or current == invocation else None


def attempt(job: Job) -> tuple[str | None, str | None]:
    """Return (invocation, error) of a job's last attempt, as far as its event log tells."""
    current, error = None, None
    with contextlib.suppress(OSError):
        for line in Path(job.logs["events"]).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                event = json.loads(line)
                if event["event"] == "start":
                    current, error = event.get("invocation"), None
                elif event["event"] == "end":
                    error = event.get("error")
    return current, error
