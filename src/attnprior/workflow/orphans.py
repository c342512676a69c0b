"""Jobs that go on without the Snakemake that started them, since it was killed."""

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attnprior.errors import tell
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
        job = "/".join(path.parent.parts[1:])
        said = (
            f"{job}, which process {{0}} of a killed run still trains (to stop it: kill {{0}}; it is resumed)"
        )
        _wait_for(partial(holder, path), said)
    said = "process {0} of a killed run, which still works here (to stop it: kill {0})"
    _wait_for(lambda: next(reversed(running(STAGES)), None), said)


def _wait_for(process: Callable[[], str | int | None], said: str) -> None:
    """Wait until `process` gives none; `said` is told once, with the first in the place of {0}."""
    told = False
    while (pid := process()) is not None:
        if not told:
            tell(f"attnprior: waiting for {said.format(pid)}")
            told = True
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
