"""`attnprior status`: what is done, runs, waits or failed, from the files alone, in any shell that sees them.

It changes nothing, and asks DVC nothing while a run is under way, here or on another machine.
"""

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from attnprior.workflow import live, lock, orphans, params, sync
from attnprior.workflow.engines import Job, Stages, snakemake_graph
from attnprior.workflow.eventlogs import Tail
from attnprior.workflow.progress import FAILED, RUNNING, STOPPED, Watched, earlier_seconds, row_of
from attnprior.workflow.state import Hashes

WIDTH = 110  # columns of the table of running jobs
TAIL = 5  # last lines of the log of a job that failed


@dataclass(frozen=True)
class Attempts:
    """The newest attempts of jobs that are not current, by what became of them.

    Of a run under way only its own count as stopped or failed: it makes the others again.
    """

    running: list[Watched]
    interrupted: list[Watched]  # begun, not ended, and no process is there to end them
    stopped: list[Watched]
    failed: list[Watched]


def status() -> int:
    """Print how far the active studies are, what runs and when it ends, what failed, what DVC lacks."""
    settings = params.load()
    holder = lock.holder()
    with snakemake_graph() as jobs:
        planned = {j.key for j in sync.reconcile(jobs, Hashes(), write=False).planned}
    total = Counter(j.rule for j in jobs.jobs)
    to_do = Counter(j.rule for j in jobs.jobs if j.key in planned)
    print(f"active studies: {', '.join(settings['active'])}")
    for rule, n in total.items():
        print(f"  {rule:17} {n - to_do[rule]:5} of {n} current")
    if holder is None:  # a run records as it goes on, and DVC lets one at a time
        with Stages() as stages:
            print(f"not recorded in dvc.lock: {', '.join(sorted(stages.changed())) or 'nothing'}")
    attempts = attempts_of([j for j in jobs.jobs if j.key in planned], holder)
    if holder is not None or attempts.running:
        print(f"at work: {lock.described(holder) if holder else 'no `attnprior run`'}")
        print("\n".join(of_run(attempts, planned, jobs.jobs, time.time())))
    for watched in attempts.interrupted:
        key, done = watched.job.key, done_of(watched)
        print(f"interrupted: {key} after {done}: begun and not ended, killed perhaps")
    for watched in attempts.stopped:
        print(f"stopped: {watched.job.key}: {watched.error}")
    for watched in attempts.failed:
        print(f"failed: {watched.job.key}: {watched.error} (log: {watched.job.logs['text']})")
        print("".join(f"    {line}\n" for line in last_lines(watched.job.logs["text"])), end="")
    if planned and holder is None:
        print("next: attnprior run")
    return 0


def attempts_of(planned: Iterable[Job], holder: dict | None) -> Attempts:
    """Return what the event logs say of jobs that are to be made; `holder` is the run under way, if any."""
    found = Attempts([], [], [], [])
    invocation = (holder or {}).get("invocation")
    for job in planned:
        watched, of = Watched(job, Tail(job.logs["events"])), None
        for event in watched.tail.read():
            watched.take(event)
            of = event.get("invocation") if event["event"] == "start" else of
        own = invocation is not None and of == invocation
        if watched.state == RUNNING:
            held = orphans.holder(Path("checkpoints", *job.key.split("/"), "lock")) is not None
            (found.running if own or held else found.interrupted).append(watched)
        elif watched.state in (STOPPED, FAILED) and (own or invocation is None):
            (found.stopped if watched.state == STOPPED else found.failed).append(watched)
    return found


def of_run(attempts: Attempts, planned: set[str], jobs: list[Job], now: float) -> list[str]:
    """Return lines for the jobs that run and a line for those that wait, with the time left.

    Waiting jobs are taken to last as others of their rule did, as many at a time as run now.
    """
    taken = {rule: fmean(seconds) for rule, seconds in earlier_seconds(jobs).items()}
    rows = [row_of(w, w.ends_at(taken.get(w.job.rule))) for w in attempts.running]
    lines = [live.titles(WIDTH), *(live.line(row, now, WIDTH) for row in rows)] if rows else []
    begun = {w.job.key for part in (attempts.running, attempts.failed) for w in part}
    waiting: dict[str, int] = defaultdict(int)
    for job in jobs:
        waiting[job.rule] += job.key in planned and job.key not in begun
    unknown = {rule for rule, n in waiting.items() if n and rule not in taken}
    unknown |= {row.key for row in rows if row.ends_at is None}
    said = f"{len(rows)} running, {sum(waiting.values())} waiting, {len(attempts.failed)} failed"
    if rows and not unknown:
        left = sum(max(0.0, (row.ends_at or now) - now) for row in rows)
        left += sum(n * taken[rule] for rule, n in waiting.items() if n)
        said += f", about {live.short(left / len(rows))} left"
    return [*lines, said]


def done_of(watched: Watched) -> str:
    """Return how far an attempt came, in its epochs or steps."""
    return str(watched.step) if watched.total is None else f"{watched.step} of {watched.total}"


def last_lines(path: str) -> list[str]:
    """Return the end of a text log, nothing if there is none."""
    with contextlib.suppress(OSError):
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if line.strip()][-TAIL:]
    return []
