"""Jobs that go on without the Snakemake that started them, since it was killed."""

import fcntl
import os
import sys
import time
from pathlib import Path

from attnprior.workflow.processes import running

POLL = 0.5  # seconds
STAGES = "attnprior.stages."


def wait() -> None:
    """Wait for the processes that make files of this checkout; what they make is taken over.

    A second process for the same job would be refused, and Snakemake would remove the log that the first one
    writes. A training holds the lock of its checkpoint folder; one that is starting, and any other job, is
    known by its command on this machine. To be called under the lock of a run: then nothing else runs here.
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
    said = False
    while processes := running(STAGES):
        if not said:
            print(
                f"attnprior: waiting for process {processes[-1]} of a killed run, which still works here"
                f" (to stop it: kill {processes[-1]})",
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
