"""One `attnprior run` at a time in a checkout, and locks that a killed run left behind."""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from attnprior.errors import UserError
from attnprior.workflow.engines import lock_files, remove_locks

LOCK = Path(".snakemake/attnprior.lock")


class RunLock:
    """The held lock. `fd` is handed to Snakemake, so the lock lives as long as either process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def note(self, **facts) -> None:
        """Record who holds the lock, for the next run."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps({"pid": os.getpid(), "time": time.time(), **facts}).encode(), 0)


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
            raise UserError(
                f"another `attnprior run` (process {holder.get('pid', 'unknown')}) works in {Path.cwd()};"
                " wait for it or stop it"
            ) from None
        if lock_files():
            if not holder.get("running"):
                raise UserError(
                    f"{Path.cwd()} is locked by a Snakemake that `attnprior run` did not start;"
                    " if none is running, remove the lock: snakemake --unlock"
                )
            print("attnprior: removing the lock of a run that was killed", file=sys.stderr)
            remove_locks()
        lock = RunLock(fd)
        lock.note(running=False)
        yield lock
        lock.note(running=False)
    finally:
        os.close(fd)


def _read(fd: int) -> dict:
    try:
        return json.loads(os.pread(fd, 10_000, 0) or b"{}")
    except ValueError:
        return {}
