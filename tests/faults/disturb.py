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
class Kill:
    """What was killed, and whether that was between two epochs of a training."""

    victim: str
    in_training: bool


@dataclass
class Outcome:
    """How a disturbed run ended, what it said, and what was killed in it."""

    status: int
    out: str
    err: str
    kills: list[Kill]


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

    def finish(self, kills: list[Kill] | None = None, timeout: float = 600) -> Outcome:
        status = self.process.wait(timeout)
        return Outcome(status, self._out.read_text(), self._err.read_text(), kills or [])


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


def moment(run: Run, rng: random.Random) -> bool:
    """Wait for a random moment, so many epochs or seconds from now; False if the run ended before."""
    if rng.random() < 0.8:
        goal = epochs(run.project) + rng.randrange(1, 12)
        reached = run.until(lambda: epochs(run.project) >= goal)
    else:
        at = time.monotonic() + rng.uniform(0.5, 15)
        reached = run.until(lambda: time.monotonic() >= at)
    time.sleep(rng.uniform(0, 0.2))
    return reached


def strike(run: Run, victim: str) -> Kill | None:
    """Kill one process of the run; None if it had ended."""
    in_training = training(run.project)
    if victim == "attnprior":
        targets = [run.process.pid]
    elif run.until(lambda: bool(run.below(VICTIMS[victim]))):
        targets = [p.pid for p in run.below(VICTIMS[victim])][:1]
    else:
        return None
    if not targets or run.process.poll() is not None:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(targets[0], signal.SIGKILL)
    return Kill(victim, in_training)


def kill(project: Project, victims: tuple[str, ...], rng: random.Random) -> Outcome:
    """Start a run, kill one process after the other at random moments, and wait for the run to end."""
    run, kills = Run(project), []
    for victim in victims:
        others = [p.pid for p in run.below(VICTIMS["snakemake"])] if moment(run, rng) else []
        struck = strike(run, victim)
        if struck is None:
            break
        kills.append(struck)
    ended = run.finish(kills)
    if kills and kills[-1].victim == "attnprior":
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
