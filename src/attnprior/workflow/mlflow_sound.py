"""Whether an SQLite store still holds what was written to it; SQLite has no checksums of its own."""

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterable

from attnprior.errors import UserError, one_line
from attnprior.workflow.eventlogs import RATE, LoggedJob
from attnprior.workflow.mlflow_open import connection, sqlite_path

RUNS = (
    "select t.value, r.run_uuid from runs r join tags t on t.run_uuid = r.run_uuid"
    " where t.key = 'attnprior.job_id' and r.lifecycle_stage = 'active'"
)
LATEST = (
    "select key from latest_metrics l where not exists (select 1 from metrics m where m.run_uuid = l.run_uuid"
    " and m.key = l.key and m.step = l.step and m.value = l.value)"
)


def state(uri: str) -> list[int] | None:
    """Return size and time of an SQLite store: unchanged, it is as we left it."""
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return None
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


def check_structure(uri: str) -> None:
    """Ask SQLite whether its file is sound.

    Raises:
        UserError: it is not.
    """
    with _open(uri) as db:
        said = db.execute("pragma quick_check(1)").fetchone()[0]
        if said != "ok":
            raise damaged(uri, said)


def check_points(uri: str, jobs: Iterable[LoggedJob]) -> None:
    """Compare the metrics of the store with those of the logs, after all were imported.

    Not the rate: it comes from times, and the store keeps what an attempt had whose log is gone.

    Raises:
        UserError: one is missing or has another value.
    """
    with _open(uri) as db:
        if wrong := db.execute(LATEST).fetchone():
            raise damaged(uri, f"latest value of {wrong[0]}")
        runs = dict(db.execute(RUNS).fetchall())
        for job in jobs:
            if job.job_id not in runs:
                continue  # deleted by hand
            rows = db.execute(
                "select key, step, value, is_nan from metrics where run_uuid = ?", (runs[job.job_id],)
            )
            stored = {(k, s): math.nan if nan else v for k, s, v, nan in rows}
            for key, value, _, step in job.points(0):
                if key == RATE:
                    continue
                found = stored.get((key, step))
                if found != value and not (math.isnan(value) and found is not None and math.isnan(found)):
                    raise damaged(uri, f"{key} of {job.start['job']} at step {step} is {found}, not {value}")


@contextlib.contextmanager
def _open(uri: str):
    path = sqlite_path(uri)
    assert path is not None
    try:
        with contextlib.closing(connection(path)) as db:
            yield db
    except sqlite3.DatabaseError as e:
        raise damaged(uri, one_line(e)) from e


def damaged(uri: str, what: str) -> UserError:
    """Return the error that names a damaged store and what to do."""
    path = sqlite_path(uri)
    return UserError(f"{path} is damaged ({what}); delete it, and `attnprior track` fills it again")
