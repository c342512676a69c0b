"""What a kill, a full disk or a bad disk leaves damaged beside the artifacts, and what is done about it.

Artifacts are judged by `state`. Here are files that the engines write in place, and checkpoints.
"""

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line, tell
from attnprior.files import left_over
from attnprior.workflow.cache import LOCK, read_lock

# Keys of a file in dvc.lock; the second line is of remotes that keep versions.
ENTRY = {"path", "hash", "md5", "size", "nfiles", "isexec"}
ENTRY |= {"checksum", "etag", "version_id", "remote", "cloud", "files"}
STAGE = {"cmd", "deps", "params", "outs"}
RWLOCK = Path(".dvc/tmp/rwlock")
KEPT = Path(".snakemake/attnprior-dvc.lock")  # dvc.lock as it was before DVC began to write it


def lock_files() -> list[Path]:
    """Return Snakemake's lock files in the working directory."""
    return sorted(Path(".snakemake/locks").glob("*.lock"))


def remove_locks() -> None:
    """Remove Snakemake's locks, as `snakemake --unlock` does."""
    for path in lock_files():
        path.unlink(missing_ok=True)


def remove_unreadable_records(*folders: str) -> int:
    """Delete Snakemake's records (in `folders` of .snakemake) that are no JSON objects, and count them.

    It passes over cut ones, but stops with a traceback at other damage. Without its record a job is judged
    by content, and taken over.
    """
    removed = 0
    for folder in folders:
        for path in [p for p in Path(".snakemake", folder).rglob("*") if p.is_file()]:
            try:
                good = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
            except (OSError, ValueError):
                good = False
            if not good:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


@contextlib.contextmanager
def lock_kept() -> Iterator[None]:
    """Keep a copy of dvc.lock while DVC writes it, for it does so in place; after an error put it back.

    Raises:
        UserError: no room for the copy.
    """
    temporary = KEPT.with_suffix(".tmp")
    try:
        KEPT.parent.mkdir(exist_ok=True)
        temporary.write_bytes(LOCK.read_bytes() if LOCK.is_file() else b"")
        os.replace(temporary, KEPT)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{KEPT}: cannot be written ({e.strerror}); free space or make it writable") from e
    try:
        yield
    except BaseException:
        _put_back()
        raise
    KEPT.unlink(missing_ok=True)


def _put_back() -> None:
    if KEPT.stat().st_size:
        os.replace(KEPT, LOCK)
    else:  # there was none
        LOCK.unlink(missing_ok=True)
        KEPT.unlink()


def restore_lock() -> None:
    """Put back the dvc.lock of before, if a kill came while DVC was writing it.

    The caller holds the run lock: a copy is also there while another run records.

    Raises:
        UserError: it is not readable, and no copy was kept.
    """
    problem = _lock_problem()
    if KEPT.is_file():
        if problem:
            _put_back()
            tell(f"attnprior: {LOCK} was cut by a kill; put back as it was before")
            return
        KEPT.unlink()
    if problem:
        raise UserError(
            f"{LOCK}: damaged ({problem}); restore it with `git checkout {LOCK}` or delete it, then"
            " `attnprior run` records anew what is there"
        )


def _lock_problem() -> str | None:
    """Return what keeps dvc.lock from being read, if anything."""
    try:
        content = read_lock()
    except (OSError, ValueError) as e:
        return one_line(e)[:100]
    if not content:
        return None
    stages = content.get("stages", {})
    if content.get("schema") != "2.0" or not set(content) <= {"schema", "stages"}:
        return "other keys than schema: '2.0' and stages"
    if not isinstance(stages, dict):
        return "stages are no mapping"
    return next((p for p in map(_stage_problem, stages, stages.values()) if p), None)


def _stage_problem(name: str, stage: Any) -> str | None:
    """Return what DVC would call invalid in a stage of dvc.lock, all of whose values are texts here."""
    if not isinstance(stage, dict) or "cmd" not in stage or not set(stage) <= STAGE:
        return f"stage {name}: other keys than {', '.join(sorted(STAGE))}"
    entries = [*stage.get("deps", []), *stage.get("outs", [])]
    if not all(isinstance(e, dict) and {"path", "md5"} <= set(e) <= ENTRY for e in entries):
        return f"stage {name}"
    for entry in entries:
        if entry.get("hash", "md5") != "md5":
            return f"stage {name}: hash is not md5"
        for key in ("size", "nfiles"):
            if not str(entry.get(key, "0")).isdecimal():
                return f"stage {name}: {key} is {entry[key]!r}"
        if entry.get("isexec", "true") not in ("true", "false"):
            return f"stage {name}: isexec is {entry['isexec']!r}"
    params = stage.get("params", {})
    if not isinstance(params, dict) or not all(isinstance(v, dict) for v in params.values()):
        return f"stage {name}: params are no mapping of files"
    return None


def remove_cut_rwlock() -> None:
    """Delete DVC's list of busy files if a kill cut it: it is written in place, and DVC refuses a cut one."""
    for last in (False, True):
        try:
            json.loads(RWLOCK.read_text(encoding="utf-8"))
            return
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            if last:
                RWLOCK.unlink(missing_ok=True)
            time.sleep(0.2)  # another DVC command may be writing it


def remove_left_over(outputs: Iterable[str]) -> None:
    """Remove what a killed attempt at a job left of its outputs; the job has finished since."""
    for output in outputs:
        for path in left_over(output):
            path.unlink(missing_ok=True)


def remove_damaged_checkpoints() -> list[Path]:
    """Delete the checkpoints whose bytes do not agree with their own checksums, and return them.

    PyTorch's reader does not compare them, so a training would go on from wrong numbers.
    """
    damaged = []
    for path in sorted(Path("checkpoints").rglob("state.pt")):
        try:
            with zipfile.ZipFile(path) as archive:
                good = archive.testzip() is None
        except FileNotFoundError:
            continue  # a job of another process has ended
        except Exception:  # whatever a damaged archive makes the reader raise
            good = False
        if not good:
            path.unlink(missing_ok=True)
            damaged.append(path)
    return damaged
