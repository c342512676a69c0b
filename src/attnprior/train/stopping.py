"""Asking a process to stop: by a signal, or because the time that it may live runs out.

In a training loop (`watching`) SIGTERM, SIGUSR1 and SIGINT are requests: the loop looks between steps, saves
its state and raises `Stopped`. A second SIGTERM or SIGINT ends the process at once, and so does any of
the three outside of a loop; once the state is saved, what was trained is written, or an error ends the
loop, all are ignored: of processes that share a training, the first to fail has the others told to end.
SIGUSR1 only ever asks, so it may come from several sides; and so does every signal where processes share a
training, for each gets it from its launcher, too.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from attnprior import provenance
from attnprior.ranks import size
from attnprior.seconds import seconds

TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h: the state is saved, the same command goes on
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
MARGIN = 20.0, 0.05  # seconds, or share of all the time given: the smaller is kept free before the end


class Stopped(Exception):
    """A training was stopped after its state was saved; `status` is for the process to exit with."""

    def __init__(self, reason: str, epoch: int, step: int) -> None:
        super().__init__(f"stopped by {reason} after epoch {epoch} step {step}; run again to continue")
        self.status = 130 if reason == signal.SIGINT.name else TEMPFAIL


class Asked(Exception):
    """A stop is wanted in the midst of an evaluation; the text is the reason."""


class Ended(SystemExit):
    """A signal ends the process at once, with status 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self._name = signal.Signals(number).name

    def __str__(self) -> str:
        return f"terminated ({self._name})"


class Watch:
    """The look of a training loop for what wants it to stop; `slowest_save` says what a save has taken."""

    def __init__(self, slowest_save: Callable[[], float]) -> None:
        self.signal: int | None = None
        self._slowest_save = slowest_save
        self._end, self._margin = deadline()
        self._before, self._longest = time.monotonic(), 0.0

    def wanted(self) -> str | None:
        """Return why to stop now (a signal's name, "time limit"), or None; to be called after every step.

        There must be time left for one more step and a save, as the longest were, and a margin.
        """
        now = time.monotonic()
        self._longest, self._before = max(self._longest, now - self._before), now
        if self.signal is not None:
            return signal.Signals(self.signal).name
        short = now + self._longest + self._slowest_save() + self._margin > self._end
        return "time limit" if short else None


_watch: Watch | None = None  # signals and the time are those of the process, so there is one
_late = False  # nothing is lost any more, and nothing won by a stop


@contextlib.contextmanager
def watching(slowest_save: Callable[[], float]) -> Iterator[Watch]:
    """Yield the `Watch` of a training loop; until the block ends, signals are requests.

    Raises:
        UserError: the time limit is no number.
        Ended: a signal came too late for the loop.
    """
    global _watch
    _watch = watch = Watch(slowest_save)
    try:
        yield watch
    except BaseException:  # also an error: a signal must not take its place before it is told
        ignore()
        raise
    finally:
        _watch = None
    if watch.signal is not None:
        _end(watch.signal)


def check() -> None:
    """Raise `Asked` if the training loop that runs, if any, is to stop, between parts of an evaluation."""
    reason = None if _watch is None else _watch.wanted()
    if reason is not None:
        raise Asked(reason)


def ignore() -> None:
    """Let signals pass from now on: all is done but what takes a moment."""
    global _late
    _late = True


@contextlib.contextmanager
def signals(*, to_the_end: bool) -> Iterator[None]:
    """Handle the signals as the module says until the block ends, or `to_the_end` of the process.

    SIGINT stays ignored where the parent process wants that, as shells do for what they run behind them.
    """
    global _late
    _late = False
    taken = [n for n in SIGNALS if n != signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, _handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end else handler)


def _handle(number: int, _frame: FrameType | None) -> None:
    if _late:
        return
    if _watch is None:
        _end(number)
    elif _watch.signal is None:
        _watch.signal = number
    elif number != signal.SIGUSR1 and size() == 1:
        _end(number)


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Ended(number)


def deadline() -> tuple[float, float]:
    """Return when the process must have ended, on the monotonic clock, and the margin before it, in seconds.

    ATTNPRIOR_TIME_LIMIT: seconds from its start. Else SLURM_JOB_END_TIME, which Slurm sets to seconds since
    1970; one that has passed is that of an earlier job. Without either there is no end.

    Raises:
        UserError: one is no number.
    """
    now = time.monotonic()
    if (limit := seconds("ATTNPRIOR_TIME_LIMIT")) is not None:
        left = limit - provenance.process_age()
    elif (end := seconds("SLURM_JOB_END_TIME")) is not None and end > time.time():
        left = limit = end - time.time()
    else:
        return math.inf, 0.0
    return now + left, min(MARGIN[0], MARGIN[1] * limit)
