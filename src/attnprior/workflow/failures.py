"""One line for everything that keeps a run from finishing."""

import contextlib
import re
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from attnprior.errors import one_line, tell
from attnprior.workflow.engines import Job
from attnprior.workflow.progress import KILLED, Progress

ROOM = 2**20  # bytes: a disk with less is full


def explain(progress: Progress, log: Path, returncode: int) -> None:
    """Say what, beside failed jobs, kept a run from finishing, and where the whole log is."""
    unfinished, blamed = progress.unfinished(), _failed_outputs(log)
    silent = [j for j in progress.waiting() if j.outputs[0] in blamed]
    for job in silent:
        why = blamed[job.outputs[0]] or _own_words(job) or f"{KILLED} (log: {job.logs['text']})"
        tell(f"error: {job.key}: {why}")
    if returncode < 0 or not (progress.snapshot.failed or progress.snapshot.stopped or silent):
        tell(f"error: snakemake {_own_failure(log, returncode)}")
    for folder in full_disks(unfinished):
        tell(f"error: {folder}: the disk is full; free space, then `attnprior run` goes on")
    tell(f"attnprior: {len(unfinished)} jobs not finished; Snakemake's log: {log}")


def _failed_outputs(log: Path) -> dict[str, str]:
    """Return {output of a failed job: what a batch system said of it, or ""} by Snakemake's log.

    Events lack a job that was refused, or killed before its first.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for block in log.read_text(encoding="utf-8", errors="replace").split("Error in rule ")[1:]:
            line = next((s for s in block.splitlines() if s.strip().startswith("output: ")), "")
            refused = re.search(r"sbatch failed\. The error message was '(.*?)'\.\n", block, re.S)
            ended = re.search(r"SLURM-job '(\d+)' failed, SLURM status is: '(\w+)'", block)
            said = f"Slurm refused it: {one_line(refused[1])}" if refused else ""
            said = f"Slurm ended job {ended[1]}: {ended[2]}" if ended and ended[2] != "FAILED" else said
            found |= dict.fromkeys((s.strip() for s in line.partition("output: ")[2].split(",")), said)
    return found


def _own_words(job: Job) -> str:
    """Return the error that ends the text log of a job, or "" if that does not end with one."""
    with contextlib.suppress(OSError):
        lines = Path(job.logs["text"]).read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return last.removeprefix("error: ") if last.startswith("error: ") else ""
    return ""


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
    tell(f"error: stopped; {unfinished} of {planned} jobs not finished, `attnprior run` goes on with them")
