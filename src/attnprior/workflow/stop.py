"""Stopping a run: signals to `attnprior run` end Snakemake and its jobs, which can be resumed."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
AGAIN = 5.0  # seconds until what has begun since, or has not heard, is told again
CANCEL = 60.0  # seconds for Snakemake to cancel its jobs in a batch system, undisturbed by another signal
GRACE = 2.0  # seconds for what the terminal has told to stop (Ctrl-C, closing it)


class Stopper:
    """What became of the signals to this process while Snakemake runs."""

    def __init__(self, interrupted: Callable[[], None], *, remote: bool = False) -> None:
        self._interrupted, self._remote = interrupted, remote
        self.child: subprocess.Popen | None = None
        self.number = 0  # the first signal that came
        self._at_once = False  # a second one came
        self._at = 0.0  # when to stop what still runs

    def handle(self, number: int, _frame: object) -> None:
        self._interrupted()
        if self.number:
            self._at_once, self._at = True, time.monotonic()
            return
        self.number = number
        told = number in (signal.SIGINT, signal.SIGHUP) and not self._remote  # Snakemake, by the terminal
        self._at = time.monotonic() + (GRACE if told else 0.0)

    def enforce(self) -> None:
        """Stop Snakemake and its jobs if a signal came; to be called again until Snakemake has ended.

        On SIGTERM alone Snakemake would wait for the running jobs, perhaps hours. The terminal sends
        SIGINT and SIGHUP to all of us, so those are given the time to end by themselves. With jobs in a
        batch system Snakemake is out of the terminal's reach, and told once. Trainings are asked first, and
        save their state; after a second signal they are not.
        """
        if self.number and time.monotonic() >= self._at:
            self._at = time.monotonic() + (CANCEL if self._remote else AGAIN)
            assert self.child is not None
            terminate(self.child.pid, signal.SIGTERM if self._at_once else signal.SIGUSR1)


def terminate(pid: int, number: int) -> None:
    """Send SIGTERM to Snakemake, so that it starts nothing more, and `number` to the stages below it.

    SIGUSR1 asks a training to save its state, however often it comes; any other stage it ends.
    Without any below it waits for a cluster or has not begun: SIGINT makes it cancel its jobs.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        snakemake = psutil.Process(pid)
        jobs = [p for p in snakemake.children(recursive=True) if _is_stage(p)]
        snakemake.send_signal(signal.SIGTERM if jobs else signal.SIGINT)
        for job in jobs:
            with contextlib.suppress(psutil.Error):
                job.send_signal(number)


def _is_stage(process) -> bool:
    import psutil

    try:
        return any(a.startswith("attnprior.stages.") for a in process.cmdline())
    except psutil.Error:  # it has ended
        return False


@contextlib.contextmanager
def stoppable(interrupted: Callable[[], None], *, remote: bool = False) -> Iterator[Stopper]:
    """Yield a `Stopper` that takes the signals as long as the block runs and calls `interrupted` on each.

    `remote` says that a batch system runs the jobs.
    """
    stopper = Stopper(interrupted, remote=remote)
    # What the caller lets pass stays so: nohup ignores the end of the terminal.
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stopper.handle) for number in heard}
    try:
        yield stopper
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
