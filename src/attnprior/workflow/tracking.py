"""MLflow follows the event logs of the jobs: `attnprior track`.

The logs are the truth and MLflow a view of them: every pass reads them all, adds what the store lacks
and can rebuild a lost store. A store that is broken or out of reach costs a warning, never a job.
A tracking server whose data were lost is filled again after `.snakemake/attnprior-tracked.json` is deleted;
a lost SQLite store is noticed.
"""

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnprior.errors import UserError, one_line, tell
from attnprior.files import read_json, write_json
from attnprior.workflow import event_check, mlflow_sound
from attnprior.workflow.eventlogs import LoggedJob, milliseconds, read_jobs
from attnprior.workflow.mlflow_check import check_store
from attnprior.workflow.mlflow_open import Unsure, count_runs, tracking_uri
from attnprior.workflow.mlflow_store import Store
from attnprior.workflow.mlflow_system import system_metrics

STAMP = Path(".snakemake/attnprior-tracked.json")
LOCK = Path(".snakemake/attnprior-tracking.lock")
Extra = Callable[[Store, list[LoggedJob]], str]  # adds something for jobs in the store; says what it did
INTERVAL = 5.0  # seconds between passes while following
PATIENCE = 60.0  # seconds to wait for another process that tracks


@dataclass
class Summary:
    """What one call of `track` did."""

    uri: str
    jobs: int = 0  # read from the logs
    points: int = 0  # added
    extras: list[str] = field(default_factory=list)  # what they did, in words
    warning: str | None = None  # printed already

    def __str__(self) -> str:
        if self.warning:
            return f"MLflow at {self.uri}: not up to date"
        return ", ".join([f"MLflow at {self.uri}: up to date, {self.points} new points", *self.extras])


def pending(root: Path | str = ".") -> bool:
    """Return whether `track` would have something to do; MLflow is not imported."""
    root = Path(root).resolve()
    logs = event_logs(root)
    return bool(logs) and not _is_tracked(root, tracking_uri(root), logs)


def track(
    root: Path | str = ".",
    follow: Callable[[], bool] | None = None,
    extras: Sequence[Extra] = (),
    on_open: Callable[[], object] = lambda: None,
) -> Summary:
    """Bring MLflow up to date with the event logs below `root`/logs; safe to repeat and to kill.

    `follow` is called between passes: it waits and says whether jobs may still be running. After it
    says no, one last pass is made, which adds the `extras`. `on_open` is called when MLflow has been
    loaded and its store opened. Nothing is raised: problems become one warning line on stderr.
    """
    root = Path(root).resolve()
    tracker = Tracker(root, on_open)
    while follow is not None and follow():
        tracker.try_pass()
    return tracker.try_pass(extras)


class Tracker:
    """Passes over the logs that keep the store open between them."""

    def __init__(self, root: Path, on_open: Callable[[], object]) -> None:
        self._root, self._summary, self._on_open = root, Summary(tracking_uri(root)), on_open
        self._store: Store | None = None
        self._jobs: dict[str, tuple[tuple[int, int], list[LoggedJob]]] = {}  # log -> (size, time), its jobs
        self._token = uuid.uuid4().hex
        self._runs: int | None = None  # in the store after the last pass

    def try_pass(self, extras: Sequence[Extra] = ()) -> Summary:
        """Make one pass; a problem is warned of once and leaves the rest for the next pass."""
        warned, self._summary.warning = self._summary.warning, None
        try:
            self._pass(extras)
        except Exception as e:  # MLflow, its data base and its server fail in many ways
            self._store = None
            self._summary.warning = one_line(e)[:300] or type(e).__name__
            if warned is None:
                tell(
                    f"warning: MLflow at {self._summary.uri} is not up to date: {self._summary.warning};"
                    " results are not affected, later: attnprior track"
                )
        return self._summary

    def _pass(self, extras: Sequence[Extra]) -> None:
        uri, logs = self._summary.uri, event_logs(self._root)
        if not logs or (not extras and _is_tracked(self._root, uri, logs)):
            return
        check_store(uri)
        with _alone(self._root / LOCK, self._token) as undisturbed:
            touched = mlflow_sound.state(uri) not in (None, _stamped_store(self._root))
            if touched:
                mlflow_sound.check_structure(uri)
            if self._store is None or not undisturbed or count_runs(uri) != self._runs:
                self._store = Store(uri, self._root)
                self._on_open()
            active = is_active(self._root)
            jobs = self._read(logs)
            failures: list[Exception] = []
            for job in jobs:
                try:
                    self._summary.points += self._store.import_job(job, active)
                except Unsure:
                    raise
                except Exception as e:
                    failures.append(e)
                    if len(failures) > 2:
                        break
            if failures:
                raise failures[0]
            if touched:
                mlflow_sound.check_points(uri, jobs)
            starts = {job.start["job"]: milliseconds(job.start) for job in jobs}
            self._store.close_abandoned({job.job_id for job in jobs}, starts)
            newest = (jobs[-1].latest_start.get("invocation") or "snakemake") if jobs else None
            self._store.update_parents(newest, active)
            self._summary.extras = [extra(self._store, jobs) for extra in extras]
            self._summary.jobs = len(jobs)
            stamp = {
                "uri": uri,
                "logs": {k: list(v) for k, v in logs.items()},
                "running": self._store.running(),
            }
            self._runs = count_runs(uri)
            write_json(self._root / STAMP, {**stamp, "runs": self._runs, "store": mlflow_sound.state(uri)})

    def _read(self, logs: dict[str, tuple[int, int]]) -> list[LoggedJob]:
        """Return the jobs of all logs by start time; a log that did not change is not read again."""
        for name, state in logs.items():
            if name not in self._jobs or self._jobs[name][0] != state:
                with contextlib.suppress(FileNotFoundError):
                    jobs = read_jobs(self._root / name)
                    event_check.check(self._root, name, jobs)
                    self._jobs[name] = (state, jobs)
        jobs = [job for name in logs if name in self._jobs for job in self._jobs[name][1]]
        return sorted(jobs, key=lambda j: (j.latest_start["time"], j.job_id))


def event_logs(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time stamp of each event log by its path relative to `root`."""
    found = {}
    for folder, _, names in os.walk(root / "logs"):
        for name in names:
            if name.endswith(".events.jsonl"):
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    stat = os.stat(path)
                    found[os.path.relpath(path, root)] = (stat.st_size, stat.st_mtime_ns)
    return dict(sorted(found.items()))


def is_active(root: Path) -> bool:
    """Return whether Snakemake works in `root`, so that a job without an end may be running."""
    return any((root / ".snakemake/locks").glob("*.lock"))


def _stamped_store(root: Path) -> list[int] | None:
    """Return the state in which the last pass left the store."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        return read_json(root / STAMP)["store"]
    return None


def _is_tracked(root: Path, uri: str, logs: dict[str, tuple[int, int]]) -> bool:
    try:
        stamp = read_json(root / STAMP)
        current = stamp["uri"] == uri and stamp["logs"] == {k: list(v) for k, v in logs.items()}
        ended = stamp["running"] > 0 and not is_active(root)
        untouched = stamp["store"] == mlflow_sound.state(uri)
        return current and not ended and untouched and stamp["runs"] == count_runs(uri)
    except (UserError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _alone(path: Path, token: str) -> Iterator[bool]:
    """Hold the lock of this checkout's tracking; yield whether nobody else has held it since we did.

    Raises:
        TimeoutError: another process keeps it.
    """
    path.parent.mkdir(exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has been tracking for {PATIENCE:.0f} s") from None
                time.sleep(0.1)
        undisturbed = os.pread(fd, 100, 0) == token.encode()
        os.ftruncate(fd, 0)
        os.pwrite(fd, token.encode(), 0)
        yield undisturbed
    finally:
        os.close(fd)


def _yield_to_jobs() -> None:
    """Let others compute first, once MLflow is loaded: beside busy jobs that alone would take minutes."""
    os.nice(max(0, 10 - os.nice(0)))


def _stdin_open() -> bool:
    """Wait for INTERVAL seconds or the end of stdin; return whether it is still open."""
    deadline = time.monotonic() + INTERVAL
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and not os.read(sys.stdin.fileno(), 4096):
            return False
    return True


def main(argv: list[str] | None = None) -> int:
    """Track once, or with `--follow` until stdin ends; always return 0."""
    follow = (sys.argv[1:] if argv is None else argv) == ["--follow"]
    if follow:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the jobs; their ends are tracked, too
    system = os.environ.get("ATTNPRIOR_SYSTEM_METRICS") == "on"
    extras = [system_metrics] if system else []
    summary = track(".", _stdin_open, extras, _yield_to_jobs) if follow else track(".", extras=extras)
    if not follow:
        print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
