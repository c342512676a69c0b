"""The process that feeds MLflow while a study runs."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

from attnprior.errors import tell
from attnprior.workflow import environment

PATIENCE = 120.0  # seconds for the last pass


@contextlib.contextmanager
def tracker() -> Iterator[None]:
    """Feed MLflow from the event logs while the block runs, in a process of its own.

    ATTNPRIOR_TRACKING=off leaves it out; `attnprior track` can follow at any time.
    """
    if os.environ.get("ATTNPRIOR_TRACKING") == "off":
        yield
        return
    child = subprocess.Popen(
        [sys.executable, "-m", "attnprior.workflow.tracking", "--follow"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C in the terminal is not for it: it ends after the jobs
        env=environment.child_environment(),
    )
    assert child.stdin is not None and child.stderr is not None
    # Its warnings pass through us, so that they do not land in the middle of a live view.
    relay = threading.Thread(target=_relay, args=(child.stderr,), daemon=True)
    relay.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            tell("attnprior: tracking took too long and was stopped; later: attnprior track")
        relay.join(1)


def _relay(lines: IO[str]) -> None:
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)
