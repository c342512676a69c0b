"""Signals to `attnprior run`: trainings below Snakemake are asked, and ended by a second signal."""

import signal
import subprocess
import sys

import pytest

from attnprior.workflow.stop import stoppable

STAGE = (  # says what comes, as a training in the midst of a long step would
    "import signal, sys\n"
    "for n in (signal.SIGTERM, signal.SIGUSR1):\n"
    "    signal.signal(n, lambda n, f: print(signal.Signals(n).name, flush=True))\n"
    "print('ready', flush=True)\n"
    "while True:\n    signal.pause()\n"
)
SNAKEMAKE = (  # waits for its job, as Snakemake does
    "import signal, subprocess, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
    f"subprocess.run([sys.executable, '-c', {STAGE!r}, 'attnprior.stages.train_student'])\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stage_is_asked_first_and_ended_by_a_second_signal(number):
    import psutil

    child = subprocess.Popen([sys.executable, "-c", SNAKEMAKE], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = iter(child.stdout.readline, "")
    (job,) = [next(lines)] and psutil.Process(child.pid).children()
    try:
        with stoppable(lambda: None) as stopper:
            stopper.child = child
            stopper.enforce()  # nothing came yet
            signal.raise_signal(number)
            stopper.enforce()
            assert {next(lines), next(lines)} == {"told\n", "SIGUSR1\n"}
            stopper.enforce()  # it is left some seconds
            signal.raise_signal(number)
            stopper.enforce()
            assert {next(lines), next(lines)} == {"told\n", "SIGTERM\n"}
            assert stopper.number == number
    finally:
        job.kill()
        child.kill()
        child.communicate()


def test_what_the_caller_ignores_stays_ignored():
    """As for `nohup attnprior run`: the end of the terminal must not end the run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(lambda: None) as stopper:
            signal.raise_signal(signal.SIGHUP)
            assert stopper.number == 0 and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == stopper.handle
    finally:
        signal.signal(signal.SIGHUP, before)
