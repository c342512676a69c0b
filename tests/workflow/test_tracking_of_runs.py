"""MLflow beside a real `attnprior run`: filled while jobs run, and never in their way."""

import contextlib
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.workflow.project import environment

pytestmark = [pytest.mark.slow, pytest.mark.workflow]


def points(path) -> dict[str, int]:
    """Return how many losses the store holds of each run that it calls running."""
    query = """select t.value, count(*) from runs r join tags t on t.run_uuid = r.run_uuid join metrics m
        on m.run_uuid = r.run_uuid where r.status = 'RUNNING' and t.key = 'attnprior.job' and m.key = 'loss'
        group by t.value"""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=5)) as db:
        return dict(db.execute(query).fetchall())
    return {}


def test_the_store_is_filled_while_the_jobs_run(project):
    project.put("students.impulse.overrides", {"epochs": 200})
    child = subprocess.Popen(
        [sys.executable, "-m", "attnprior", "run"],
        cwd=project.root,
        env=environment(ATTNPRIOR_TRACKING="on"),
        stdout=subprocess.DEVNULL,
    )
    seen = []
    while child.poll() is None:
        found = points(project.root / "mlflow.db")
        if any(k.startswith("train_student/digits/") for k in found):
            seen.append(max(found.values()))
        time.sleep(1)
    assert child.returncode == 0
    assert 0 < min(seen) < max(seen) < 200
    assert points(project.root / "mlflow.db") == {}


def test_a_study_runs_to_its_end_beside_a_foreign_data_base(project):
    project.put("evaluation.ece_bins", 10)
    with sqlite3.connect(project.root / "mlflow.db") as db:
        db.execute("create table notes (text text)")
    db.close()
    done = project.attnprior("run", ATTNPRIOR_TRACKING="on")
    (line,) = [x for x in done.stderr.splitlines() if "MLflow" in x]
    assert "no MLflow store but something else's" in line and "results are not affected" in line
    assert project.planned() == set()
