"""Event logs of many jobs, written by the jobs' own EventLog, and what MLflow must hold of them.

`python -m tests.sharing.load ROOT JOBS STEPS PAUSE` writes them like a study that runs: all at once, row by
row, some attempts killed in the middle of a line and continued, some jobs failing.
"""

import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from attnprior.events import EventLog
from attnprior.files import digest

METRICS = ("train_loss", "lr", "grad_norm", "val_top1")


class SyntheticJob:
    """Job `number` of `jobs`: every third is resumed, every tenth fails."""

    def __init__(self, root: Path, number: int, steps: int) -> None:
        self._number, self._steps, self._step = number, steps, 0
        self._to_kill = number % 3 == 0
        self.path = root / f"logs/train_student/digits/arm{number // 5}/seed{number % 5}.events.jsonl"
        self._log = EventLog(self.path)
        self._start(1)

    def _start(self, attempt: int) -> None:
        arm, seed = f"arm{self._number // 5}", self._number % 5
        settings = {f"students.{arm}": {"labels": 200, "init": {"source": "random"}}}
        self._log.start(
            resume=attempt > 1,
            job=f"train_student/digits/{arm}/seed{seed}",
            job_id=f"id-{self._number}",
            attempt=attempt,
            rule="train_student",
            wildcards={"dataset": "digits", "student": arm, "seed": seed},
            params=settings,
            params_digest=digest(settings),
            inputs={"data/digits.safetensors": "a" * 64},
            commit="c" * 40,
            invocation=f"{attempt:032}",
            device="cpu (A model)",
            versions={"python": "3.11.9"},
        )

    def advance(self) -> bool:
        """Write the next row, or the end; return whether more is to come."""
        if self._step < self._steps:
            values = {m: (k + 1) * 1000 + self._number + self._step / 64 for k, m in enumerate(METRICS)}
            self._log.metrics(self._step, values)
            self._step += 1
            if self._to_kill and self._step == self._steps // 2:
                self._to_kill = False
                with open(self.path, "ab") as f:
                    f.write(b'{"event":"metrics","ti')  # killed here
                self._log = EventLog(self.path)
                self._start(2)
                self._step -= 2  # its checkpoint was older
            return True
        failed = self._number % 10 == 9
        self._log.end(
            "failed" if failed else "finished",
            {} if failed else {"val_top1": 0.5},
            [],
            "it broke" if failed else None,
        )
        return False


def write(root: Path, jobs: int, steps: int, pause: float = 0.0) -> None:
    """Write the logs of `jobs` jobs that run at the same time, `pause` seconds between two rows of one."""
    running = [SyntheticJob(root, k, steps) for k in range(jobs)]
    while running:
        running = [job for job in running if job.advance()]
        time.sleep(pause)


def expected(root: Path) -> dict[tuple[str, str, int], tuple[float, int]]:
    """Return {(job id, metric, step): (value, milliseconds)} of all logs; the first record counts."""
    points: dict[tuple[str, str, int], tuple[float, int]] = {}
    for path in root.glob("logs/**/*.events.jsonl"):
        job_id, step = "", 0
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "start":
                job_id = event["job_id"]
                continue
            step = event.get("step", step)
            prefix = "final/" if event["event"] == "end" else ""
            for key, value in event["values"].items():
                points.setdefault((job_id, prefix + key, step), (value, round(event["time"] * 1000)))
    return points


def stored(database: Path) -> list[tuple[str, str, int, float, int]]:
    """Return (job id, metric, step, value, milliseconds) of all points of an MLflow data base."""
    query = """select t.value, m.key, m.step, m.value, m.timestamp from metrics m
        join runs r on r.run_uuid = m.run_uuid and r.lifecycle_stage = 'active'
        join tags t on t.run_uuid = m.run_uuid and t.key = 'attnprior.job_id'"""
    with closing(sqlite3.connect(database)) as db:
        return db.execute(query).fetchall()


def runs(database: Path) -> dict[str, list[tuple[str, str]]]:
    """Return {job id: [(status, attempt)]}, more than one of them where a run was doubled."""
    query = """select t.value, r.status, coalesce(a.value, '') from runs r
        join tags t on t.run_uuid = r.run_uuid and t.key = 'attnprior.job_id'
        left join tags a on a.run_uuid = r.run_uuid and a.key = 'attempt'
        where r.lifecycle_stage = 'active'"""
    found: dict[str, list[tuple[str, str]]] = {}
    with closing(sqlite3.connect(database)) as db:
        for job_id, status, attempt in db.execute(query):
            found.setdefault(job_id, []).append((status, attempt))
    return found


def parents(database: Path) -> int:
    """Return the number of runs that stand above others."""
    query = """select count(*) from runs r where r.lifecycle_stage = 'active' and not exists (
        select 1 from tags t where t.run_uuid = r.run_uuid and t.key = 'attnprior.job_id')"""
    with closing(sqlite3.connect(database)) as db:
        return db.execute(query).fetchone()[0]


def check(root: Path, database: Path, jobs: int) -> int:
    """Assert that the data base holds what the logs say, all of it and once; return the number of points."""
    wanted, found = expected(root), stored(database)
    held = {(job, key, step): (value, when) for job, key, step, value, when in found}
    assert len(found) == len(held), f"{len(found) - len(held)} points doubled"
    lost = wanted.keys() - held.keys()
    assert not lost, f"{len(lost)} points lost, for example {sorted(lost)[:3]}"
    assert held == wanted
    states = runs(database)
    assert len(states) == jobs
    for job_id, states_of in states.items():
        number = int(job_id.removeprefix("id-"))
        wanted_state = ("FAILED" if number % 10 == 9 else "FINISHED", "2" if number % 3 == 0 else "1")
        assert states_of == [wanted_state], job_id
    return len(found)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
