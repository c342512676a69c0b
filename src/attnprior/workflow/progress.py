"""How far the jobs of one run are, read from their event logs and run.json.

`Progress.update` looks at the files and returns what is new; `Progress.snapshot` is what a view shows.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from attnprior.workflow.engines import Job
from attnprior.workflow.eventlogs import Tail

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"
KILLED = "killed from outside before it could say why (memory?); `attnprior run` resumes it"
SLICE = 300  # waiting jobs that one update looks at; running ones are looked at every time


@dataclass
class Watched:
    """One planned job as its newest attempt shows it. Times are seconds since the epoch of the clock."""

    job: Job
    tail: Tail
    state: str = WAITING
    started: float = 0.0
    total: int | None = None  # epochs or steps that it takes
    images: int | None = None  # an epoch's
    step: int = 0  # epochs or steps done
    at: float = 0.0  # when `step` was done
    first: tuple[int, float] = (0, 0.0)  # step and time that rates are counted from
    values: dict = field(default_factory=dict)  # the newest row
    error: str | None = None
    record: tuple[int, int] | None = None  # size and time stamp of the run.json last looked at

    def take(self, event: dict) -> None:
        """Bring the job up to date with one of its events."""
        if event["event"] == "start":
            self.state, self.error, self.values = RUNNING, None, {}
            self.started = self.at = event["time"]
            self.total, self.images = event.get("total"), event.get("images")
            self.step = event.get("resumed_epoch", 0)
            self.first = (self.step, self.at)
        elif event.get("filled"):
            pass  # of an earlier attempt
        elif event["event"] == "metrics":
            unrated = self.first[1] == self.started  # loading counts into the first row, so begin after it
            self.step, self.at, self.values = event["step"], event["time"], event.get("values", {})
            if unrated:
                self.first = (self.step, self.at)
        elif event.get("status") == "failed":
            self.state, self.error = FAILED, event.get("error") or "failed"
        elif event.get("status") == "stopped":  # its state is saved, the next attempt goes on
            self.state, self.error = STOPPED, event.get("error") or "stopped"

    def rate(self) -> float | None:
        """Return epochs (or steps) per second, None before two rows are there."""
        steps, seconds = self.step - self.first[0], self.at - self.first[1]
        return steps / seconds if steps > 0 and seconds > 0 else None

    def ends_at(self, expected: float | None) -> float | None:
        """Return when the job will end; `expected` is what such jobs take, if that is known."""
        rate = self.rate()
        if rate is not None and self.total is not None:
            return self.at + (self.total - self.step) / rate
        return None if expected is None else self.started + expected


@dataclass(frozen=True)
class Row:
    """A running job as a view shows it; what is not known is None."""

    key: str
    step: int | None
    total: int | None
    loss: float | None
    accuracy: float | None  # validation top-1, 0 to 1
    images_per_second: float | None
    ends_at: float | None


@dataclass(frozen=True)
class Snapshot:
    """All that a view shows; it does not change while it is drawn."""

    total: int
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    stopped: int = 0
    begun: float = 0.0
    ends_at: float | None = None
    rows: tuple[Row, ...] = ()


class Progress:
    """The jobs of one run: which wait, run, have finished or failed, and what their time went into."""

    def __init__(
        self,
        planned: Iterable[Job],
        earlier: dict[str, list[float]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Watch `planned` from now on; `earlier` is what jobs of each rule took before, in seconds."""
        self._clock, self._begun = clock, clock()
        self._jobs = [Watched(j, Tail(j.logs["events"], skip=True)) for j in planned]
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._earlier = earlier or {}
        self._next = 0  # waiting job to look at first
        self.invocation = ""
        self.done: dict[str, dict] = {}  # job key -> run.json
        self.snapshot = Snapshot(len(self._jobs), waiting=len(self._jobs), begun=self._begun)

    def update(self, *, last: bool = False) -> tuple[list[Job], list[tuple[Job, str]]]:
        """Look at the files; return the jobs that finished, and those that failed with why.

        Of many waiting jobs a call looks at some only, in turns. The `last` call, when nothing runs any
        more, looks at all and gives up those that were killed without a word.
        """
        finished, failed = [], []
        for watched in self._look_at(last):
            before, error = watched.state, watched.error
            for event in watched.tail.read():
                watched.take(event)
            record = self._new_record(watched)
            if record is not None:
                watched.state, watched.error = DONE, None
                self.done[watched.job.key] = record
                self._seconds[watched.job.rule].append(record["seconds"]["total"])
                finished.append(watched.job)
            elif last and watched.state == RUNNING:
                watched.state, watched.error = FAILED, KILLED
            new = (before, error) != (watched.state, watched.error)
            if watched.state == FAILED and watched.error is not None and new:
                failed.append((watched.job, watched.error))
        self.snapshot = self._snapshot()
        return finished, failed

    def stopped(self) -> list[tuple[Job, str]]:
        """Return the jobs that were stopped with their state saved, and not begun again since, with why.

        To be told when Snakemake has ended: before, it may submit them again.
        """
        return [(w.job, w.error) for w in self._jobs if w.state == STOPPED and w.error is not None]

    def unfinished(self) -> list[Job]:
        """Return the jobs without a result of this run."""
        return [w.job for w in self._jobs if w.state != DONE]

    def waiting(self) -> list[Job]:
        """Return the jobs that have not written an event in this run."""
        return [w.job for w in self._jobs if w.state == WAITING]

    def _look_at(self, everything: bool) -> list[Watched]:
        open_jobs = [w for w in self._jobs if w.state != DONE]
        if everything or len(open_jobs) <= SLICE:
            return open_jobs
        active = [w for w in open_jobs if w.state == RUNNING]
        others = [w for w in open_jobs if w.state != RUNNING]
        begin = self._next % len(others) if others else 0
        self._next = begin + SLICE
        return active + (others + others)[begin : begin + min(SLICE, len(others))]

    def _new_record(self, watched: Watched) -> dict | None:
        """Return the job's run.json if this run has written it."""
        try:
            stat = os.stat(watched.job.run_json)
        except OSError:
            return None
        state = (stat.st_size, stat.st_mtime_ns)
        if state == watched.record:
            return None
        watched.record = state
        record = read_record(watched.job.run_json)
        return record if record.get("invocation") == self.invocation else None

    def _expected(self, rule: str) -> float | None:
        taken = self._seconds.get(rule) or self._earlier.get(rule)
        return fmean(taken) if taken else None

    def _snapshot(self) -> Snapshot:
        counts = dict.fromkeys((WAITING, RUNNING, DONE, FAILED, STOPPED), 0)
        for watched in self._jobs:
            counts[watched.state] += 1
        running = [w for w in self._jobs if w.state == RUNNING]
        ends = {w.job.key: w.ends_at(self._expected(w.job.rule)) for w in running}
        rows = tuple(row_of(w, ends[w.job.key]) for w in running)
        return Snapshot(
            len(self._jobs),
            counts[DONE],
            counts[RUNNING],
            counts[WAITING],
            counts[FAILED],
            counts[STOPPED],
            self._begun,
            self._ends_at(running, ends),
            rows,
        )

    def _ends_at(self, running: list[Watched], ends: dict[str, float | None]) -> float | None:
        """Return when the run will end if work goes on at the pace so far.

        Work is counted in seconds of jobs: a waiting job will take what those of its rule took (of any
        rule, before one of its own is known), and the pace, work done per second, tells how many run
        side by side. None before the first job has finished.
        """
        if not self.done:
            return None
        now = self._clock()
        known = {w.job.rule: self._expected(w.job.rule) for w in self._jobs}
        usual = fmean(v for v in known.values() if v is not None)
        work = sum(sum(taken) for taken in self._seconds.values()) + sum(now - w.started for w in running)
        left = sum(usual if (v := known[w.job.rule]) is None else v for w in self._jobs if w.state == WAITING)
        left += sum(max(0.0, (end or now + usual) - now) for end in ends.values())
        return now + left * (now - self._begun) / work if work > 0 else None


def row_of(running: Watched, ends_at: float | None) -> Row:
    """Return a running job as a view shows it."""
    rate = running.rate()
    return Row(
        running.job.key,
        running.step if running.total is not None else None,
        running.total,
        running.values.get("loss"),
        running.values.get("val_top1"),
        rate * running.images if rate is not None and running.images is not None else None,
        ends_at,
    )


def read_record(path: str) -> dict:
    """Return the content of a run.json, empty if it is missing or broken."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def earlier_seconds(jobs: Iterable[Job], enough: int = 5) -> dict[str, list[float]]:
    """Return {rule: seconds that jobs took} from the run.json that are there, `enough` for each rule."""
    found: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        if len(found[job.rule]) < enough and (record := read_record(job.run_json)):
            found[job.rule].append(record["seconds"]["total"])
    return {rule: taken for rule, taken in found.items() if taken}
