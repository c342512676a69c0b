"""Where the MLflow store is, and how it is made; MLflow is imported only to make it."""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line

EXPERIMENT = "attnprior"
# Set before MLflow is imported: it reads some of them at import.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
IMPATIENT = {
    RETRIES: "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
}


def tracking_uri(root: Path | str = ".") -> str:
    """Return $MLFLOW_TRACKING_URI, or the SQLite store in the project root by its absolute path."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(root).resolve() / 'mlflow.db'}"


def make_quiet() -> None:
    """Turn telemetry off and make requests give up soon, for MLflow imported after this."""
    os.environ.update(QUIET)
    for key, value in IMPATIENT.items():
        os.environ.setdefault(key, value)
    for name in ("alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)


class Unsure(Exception):
    """A run may have been made or not; the runs must be read anew, by their tags, before another is made."""


@contextlib.contextmanager
def sent_once() -> Iterator[None]:
    """Let MLflow send a request once: a creation repeated after a lost reply would make a second run.

    Raises:
        Unsure: the reply was an error, or there was none.
    """
    before = os.environ.get(RETRIES)
    os.environ[RETRIES] = "0"
    try:
        yield
    except Exception as e:
        raise Unsure(one_line(e)) from e
    finally:
        if before is None:
            del os.environ[RETRIES]
        else:
            os.environ[RETRIES] = before


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI, None for any other."""
    prefix = "sqlite:///"
    return Path(uri[len(prefix) :].partition("?")[0]) if uri.startswith(prefix) else None


def is_new_sqlite(uri: str) -> bool:
    """Return whether `uri` is an SQLite file that is not there yet."""
    path = sqlite_path(uri)
    return path is not None and (not path.exists() or path.stat().st_size == 0)


def create_sqlite(uri: str, root: Path) -> None:
    """Make the tables and the experiment in a file aside, so that a kill leaves no half-made store."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path = sqlite_path(uri)
    assert path is not None
    aside = path.with_name(f".{path.name}.new")
    aside.parent.mkdir(parents=True, exist_ok=True)
    aside.unlink(missing_ok=True)
    made = SqlAlchemyStore(f"sqlite:///{aside}", (root / "mlartifacts").as_uri())
    made.create_experiment(EXPERIMENT, artifact_location=(root / "mlartifacts").as_uri())
    made.engine.dispose()
    os.replace(aside, path)
    SqlAlchemyStore(uri, "").engine.dispose()  # MLflow keeps connections, perhaps to a deleted file


def open_experiment(client: Any, uri: str, root: Path) -> str:
    """Return the id of the experiment, made if it is missing.

    Raises:
        UserError: somebody deleted it.
    """
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        local = not uri.startswith(("http", "databricks"))  # a server places artifacts itself
        location = (root / "mlartifacts").as_uri() if local else None
        return client.create_experiment(EXPERIMENT, artifact_location=location)
    if found.lifecycle_stage == "deleted":
        raise UserError(
            f"experiment {EXPERIMENT} is deleted; run: mlflow experiments restore -x {found.experiment_id}"
        )
    return found.experiment_id


def count_runs(uri: str) -> int | None:
    """Return how many runs of ours an SQLite store holds, None where that cannot be told.

    A deleted or exchanged store is noticed by it. The standard library asks in a millisecond; only
    equality with an earlier answer matters, so another table layout costs a full pass and no more.
    """
    path = sqlite_path(uri)
    if path is None:
        return None
    try:
        return _ask(path, "select count(*) from tags where key = 'attnprior.project'")
    except sqlite3.Error:
        return None if path.exists() else -1


def _ask(path: Path, query: str) -> int:
    with contextlib.closing(connection(path)) as db:
        return db.execute(query).fetchone()[0]


def connection(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that exists.

    It may write, where the file may be written, for a kill in a transaction leaves a journal that only a
    writer can roll back; until then a reader is refused.
    """
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=1)
