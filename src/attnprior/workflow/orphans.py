"""Trainings that go on without the Snakemake that started them, since it was killed."""

import fcntl
import os
import sys
import time
from pathlib import Path

POLL = 0.5  # seconds


def wait() -> None:
    """Wait for the processes that train jobs of this checkout; what they make is taken over.

    A second process for the same job would be refused. Each holds the lock of its checkpoint folder.
    """
    for path in sorted(Path("checkpoints").rglob("lock")):
        said = False
        while (pid := holder(path)) is not None:
            if not said:
                job = "/".join(path.parent.parts[1:])
                print(
                    f"attnprior: waiting for {job}, which process {pid} of a killed run still trains"
                    f" (to stop it: kill {pid}; it is resumed)",
                    file=sys.stderr,
                )
                sys.stderr.flush()
                said = True
            time.sleep(POLL)


def holder(path: Path) -> str | None:
    """Return the process that holds the lock `path`, or None if nobody does."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
