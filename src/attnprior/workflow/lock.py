"""One `attnprior run` at a time in a checkout, and locks that a killed run left behind."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from attnprior.errors import UserError, tell
from attnprior.workflow import repair
from attnprior.workflow.repair import lock_files, remove_locks

LOCK = Path(".snakemake/attnprior.lock")
NOTE = 400  # bytes


class RunLock:
    """The held lock. `fd` is handed to Snakemake, so the lock lives as long as either process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def note(self, **facts) -> None:
        """Record who holds the lock, for the next run. One write of one length: a kill cannot cut it."""
        known = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time(), **facts}
        try:
            os.pwrite(self.fd, json.dumps(known).ljust(NOTE).encode(), 0)
        except OSError as e:
            raise UserError(f"{LOCK}: cannot be written ({e.strerror}); free space, then again") from e


@contextlib.contextmanager
def run_lock() -> Iterator[RunLock]:
    """Hold the lock of this checkout; remove Snakemake's lock if a killed run of ours left it.

    Raises:
        UserError: another run is active (names its process), or Snakemake's lock is not ours to remove.
    """
    try:
        LOCK.parent.mkdir(exist_ok=True)
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as e:
        raise UserError(f"{LOCK}: cannot be written ({e.strerror}); make the folder writable") from e
    try:
        holder = _read(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{described(holder)} works in {Path.cwd()}; wait for it or stop it") from None
        if lock_files():
            if not holder.get("running"):
                raise UserError(
                    f"{Path.cwd()} is locked by a Snakemake that `attnprior run` did not start;"
                    " if none is running, remove the lock: snakemake --unlock"
                )
            if holder.get("host", socket.gethostname()) != socket.gethostname():
                raise UserError(
                    f"{Path.cwd()} is locked by an `attnprior run` (process {holder.get('pid')}) on"
                    f" {holder['host']}; if it has ended, remove the lock: snakemake --unlock"
                )
            tell("attnprior: removing the lock of a run that was killed")
            remove_locks()
        repair.remove_unreadable_records("incomplete")
        repair.restore_lock()
        repair.remove_cut_rwlock()
        lock = RunLock(fd)
        lock.note(running=False)
        yield lock
        lock.note(running=bool(lock_files()))  # left by a Snakemake that was killed
    finally:
        os.close(fd)


def holder() -> dict | None:
    """Return what the run that works in this checkout noted, None if there is none.

    Of a process on another machine only its note can tell.
    """
    try:
        fd = os.open(LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = _read(fd)
    finally:
        os.close(fd)
    if found.get("host") != socket.gethostname():
        return found if found.get("running") else None
    return found if any(_is_ours(found[k]) for k in ("pid", "snakemake") if k in found) else None


def _read(fd: int) -> dict:
    try:
        found = json.loads(os.pread(fd, 10_000, 0) or b"{}")
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {}


def described(holder: dict) -> str:
    """Return who holds the lock. A killed `attnprior run` leaves it to the Snakemake that it started."""
    pid, host = holder.get("pid", "unknown"), holder.get("host", socket.gethostname())
    if host != socket.gethostname():
        return f"another `attnprior run` (process {pid} on {host})"
    snakemake = holder.get("snakemake")
    if snakemake and not _is_ours(pid) and _is_ours(snakemake):
        return f"Snakemake (process {snakemake}) of an `attnprior run` that was killed still"
    return f"another `attnprior run` (process {pid})"


def _is_ours(pid) -> bool:
    """Return whether the process lives and is of this package, not another that got its number."""
    import psutil

    try:
        return any("attnprior" in word for word in psutil.Process(int(pid)).cmdline())
    except (psutil.Error, TypeError, ValueError):
        return False
