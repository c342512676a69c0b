"""Whether an MLflow store answers and can be written, found out before MLflow is imported (seconds)."""

import contextlib
import os
import re
import socket
import sqlite3
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from attnprior.errors import UserError, one_line
from attnprior.workflow import mlflow_sound
from attnprior.workflow.mlflow_open import is_new_sqlite, sqlite_path

OTHER = "name another store in MLFLOW_TRACKING_URI"


def check_store(uri: str) -> None:
    """Try the server's port, or look into the data base file.

    Raises:
        OSError: nothing answers.
        sqlite3.Error: the file is no data base.
        UserError: the file cannot be written, is damaged, or is the store of another MLflow or of something
            else.
    """
    path = sqlite_path(uri)
    if path is not None:
        if path.parent.exists() and not os.access(path.parent, os.W_OK):
            raise UserError(f"its folder cannot be written; make {path.parent} writable, or {OTHER}")
        if not is_new_sqlite(uri):
            try:
                _check_file(path, uri)
            except sqlite3.DatabaseError as e:
                if "malformed" not in str(e):
                    raise
                raise mlflow_sound.damaged(uri, one_line(e)) from e
        return
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
        return  # only the proxy can tell
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname, port), timeout=2).close()


def _check_file(path: Path, uri: str) -> None:
    address = f"{path.resolve().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=1, isolation_level=None)) as db:
        tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
        if tables and not {"experiments", "runs", "alembic_version"} <= tables:
            raise UserError(f"the file is no MLflow store but something else's; {OTHER}")
        if tables:
            found = db.execute("select version_num from alembic_version").fetchone()
            _check_revision(found[0] if found else "none", uri)
        try:
            if tables:
                db.execute("delete from alembic_version where 0")  # writes nothing, but asks for the right to
        except sqlite3.OperationalError as e:
            if "readonly" in str(e):
                raise UserError(f"the file cannot be written; make it writable, or {OTHER}") from e
            # "database is locked": MLflow waits longer than we do


def _check_revision(revision: str, uri: str) -> None:
    known, newest = _revisions()
    if not known or revision in newest:
        return
    if revision in known:
        raise UserError(
            f"the store was made by an older MLflow (schema {revision});"
            f" back it up, then run: mlflow db upgrade {uri}"
        )
    raise UserError(
        f"the store was made by a newer MLflow than the one installed (schema {revision});"
        f" install that one, or {OTHER}"
    )


@cache
def _revisions() -> tuple[frozenset[str], frozenset[str]]:
    """Return the schema revisions that the installed MLflow knows, and the newest of them.

    They are read from its migration scripts; where these lie elsewhere one day nothing is known and
    MLflow itself has to complain.
    """
    spec = find_spec("mlflow")
    known, replaced = set(), set()
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for script in Path(folder, "store/db_migrations/versions").glob("*.py"):
            text = script.read_text(encoding="utf-8")
            known |= set(re.findall(r'^revision = "(\w+)"', text, re.M))
            replaced |= set(re.findall(r'^down_revision = "(\w+)"', text, re.M))
    return frozenset(known), frozenset(known - replaced)
