"""Runs of a study that are killed or stopped on the way."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults import study
from tests.workflow.project import Project, environment

VICTIMS = {
    "job": r"attnprior\.stages\.",
    "snakemake": r"attnprior\.workflow\.scheduler",
    "tracker": r"attnprior\.workflow\.tracking",
}
MADE = ("data", "teachers", "fits", "runs", "logs", "checkpoints", ".snakemake", "dvc.lock", "mlflow.db")


@dataclass
class Outcome:
    """What a disturbed run said, and whether the signal came while an epoch was being trained."""

    status: int
    out: str
    err: str
    hit: bool
    in_training: bool


class Run:
    """`attnprior run` as a process of its own group."""

    def __init__(self, project: Project, **more: str) -> None:
        self.project = project
        self._out, self._err = project.root.with_suffix(".out"), project.root.with_suffix(".err")
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnprior", "run"],
                cwd=project.root,
                env=environment(**{**study.TRACKED, **more}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def below(self, pattern: str) -> list[psutil.Process]:
        """Return the descendants whose command matches, but no shells."""
        found = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    command = process.cmdline()
                    if "-c" not in command[:2] and re.search(pattern, " ".join(command)):
                        found.append(process)
        return found

    def jobs(self) -> list[int]:
        return [p.pid for p in self.below(VICTIMS["job"])]

    def until(self, moment, timeout: float = 600) -> bool:
        """Wait until `moment()` is true; False if the run ended before."""
        deadline = time.monotonic() + timeout
        while not moment():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"nothing happened: {self._err.read_text()}"
            time.sleep(0.02)
        return True

    def finish(self, hit: bool = True, in_training: bool = False, timeout: float = 600) -> Outcome:
        status = self.process.wait(timeout)
        return Outcome(status, self._out.read_text(), self._err.read_text(), hit, in_training)


def epochs(project: Project) -> int:
    """Return the number of epochs in the logs."""
    logs = [p for rule in study.TRAININGS for p in (project.root / "logs" / rule).rglob("*.events.jsonl")]
    return sum(p.read_bytes().count(b'{"event":"metrics"') for p in logs)


def training(project: Project) -> bool:
    """Return whether a training has finished its first epoch, and not its last."""
    for path in (project.root / "logs").rglob("*.events.jsonl"):
        if path.relative_to(project.root / "logs").parts[0] not in study.TRAININGS:
            continue
        attempt = path.read_bytes().rpartition(b'{"event":"start"')[2]
        steps = [json.loads(s) for s in re.findall(rb'"step":(\d+),"values"', attempt)]
        last = study.EPOCHS["mae" if "pretrain" in str(path) else "student"]
        if steps and steps[-1] < last and b'{"event":"end"' not in attempt:
            return True
    return False


def kill(project: Project, victim: str, rng: random.Random) -> Outcome:
    """Start a run, kill one of its processes at a random moment, and wait for the run to end.

    The moment is a number of epochs after the start, or of seconds.
    """
    run, before = Run(project), epochs(project)
    if rng.random() < 0.8:
        more = rng.randrange(1, 12)
        hit = run.until(lambda: epochs(project) >= before + more)
    else:
        at = time.monotonic() + rng.uniform(0.5, 15)
        hit = run.until(lambda: time.monotonic() >= at)
    time.sleep(rng.uniform(0, 0.2))
    in_training = training(project)
    if victim == "attnprior":
        targets = [run.process.pid]
    else:
        hit = hit and run.until(lambda: bool(run.below(VICTIMS[victim])))
        targets = [p.pid for p in run.below(VICTIMS[victim])][:1]
    others = [p.pid for p in run.below(VICTIMS["snakemake"])]
    hit = hit and bool(targets) and run.process.poll() is None
    for pid in targets if hit else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = run.finish(hit, hit and in_training)
    if victim == "attnprior" and hit:
        alive = [pid for pid in others if psutil.pid_exists(pid)]
        if alive and rng.random() < 0.5:
            refused = project.attnprior("run", ok=False)
            if psutil.pid_exists(alive[0]):
                assert refused.returncode == 1 and f"Snakemake (process {alive[0]})" in refused.stderr
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return ended


def clear(project: Project) -> None:
    """Remove everything that runs have made."""
    import shutil

    for name in MADE:
        path = project.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in (project.root / "results").iterdir():
        shutil.rmtree(path)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def errors(text: str) -> list[str]:
    return [line for line in lines(text) if line.startswith("error: ")]


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
