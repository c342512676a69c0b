"""Every combination of the papers' studies trains 50 steps through the shipped graph and makes its table row.

A study is done when each distinct combination of rule, model, init, transfer and recipe in it has: students,
the teachers that are pre-trained for them, and fits. It takes hours on two cores: `make test-studies`, while
`make test` does without. With ATTNPRIOR_STUDIES_DIR projects stay in that folder, one for each file, and a
second call goes on with what the first one made.
"""

import csv
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnprior.workflow import costs, params, studyfiles
from tests.studies import projects
from tests.studies.reduced import STEPS, Reduced, reduce
from tests.workflow import mutations
from tests.workflow.project import ROOT, environment

pytestmark = pytest.mark.studies

FILES = [p for p in studyfiles.names(ROOT) if "studies" in (studyfiles.read_yaml(ROOT / p) or {})]


@pytest.fixture
def root(request, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(ROOT)
    kept = os.environ.get("ATTNPRIOR_STUDIES_DIR")
    return Path(kept, Path(request.param).stem).absolute() if kept else tmp_path / "project"


@pytest.mark.parametrize(("path", "root"), [(p, p) for p in FILES], indirect=["root"], ids=FILES)
def test_each_combination_trains_and_has_its_row(path, root, monkeypatch, capsys):
    small = reduce(mutations.read(), path)
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of an interrupted call Snakemake may still wait for its jobs
        projects.write(root, small)
        monkeypatch.chdir(root)
        done = _snakemake(small, lock.fileno())
    good, bad = _looked_through(root, small)
    jobs = _jobs(small)
    lines = [f"{path}: {_count(good, 'run')}; {_count(bad, 'failed')}"]
    lines += [f"  {len(jobs)} jobs, {sum(j.work.flops for j in jobs) / 1e12:.1f} TFLOP of training"]
    lines += [f"  failed   {key}: {how}" for key, how in bad.items()]
    lines += [f"  run      {key}: {how}" for key, how in good.items()]
    lines += [f"  same     {arm}: {other} stands for it" for arm, other in small.same.items()]
    lines += [f"  unused   {key}: no arm that is run needs it" for key in small.unused]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not bad and done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _snakemake(small: Reduced, lock: int) -> subprocess.CompletedProcess:
    """Make everything in the working directory; the lock is held as long as Snakemake lives."""
    # Rules state the same memory for all networks, so the largest decide how many jobs half of it holds.
    most = int(_memory() / 2 / max(job.work.memory for job in _jobs(small)))
    cores = max(1, min(most, os.cpu_count() or 1))
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--nolock", "--cores", str(cores)],
        # A state of the largest network is 5 GB: it is saved less often than every ten seconds.
        env=environment(ATTNPRIOR_CHECKPOINT_SECONDS="120"),
        pass_fds=(lock,),
        capture_output=True,
        text=True,
        check=False,
    )


def _looked_through(root: Path, small: Reduced) -> tuple[dict[str, str], dict[str, str]]:
    """Return what was made as it should, and what was not: {kind study/arm: how far it came}."""
    good: dict[str, str] = {}
    bad: dict[str, str] = {}
    finished: set[str] = set()
    for study, arms in small.arms.items():
        dataset = small.content["studies"][study]["datasets"][0]
        rows = _rows(root / "results" / study / "table.csv")
        for arm in arms:
            steps = _steps(root / f"runs/{dataset}/{arm}/seed0/history.csv")
            fine = steps >= STEPS and arm in rows
            row = "row" if arm in rows else "no row"
            (good if fine else bad)[f"arm {study}/{arm}"] = f"{steps} steps, {row}"
            finished |= {arm} if fine else set()
    for (dataset, name), students in small.teachers.items():
        values = small.content["teachers"][name]
        steps = _steps(root / f"teachers/{dataset}/{name}/seed0/history.csv")
        seen = finished & set(students)
        fine = (steps >= STEPS or values["source"] != "mae") and seen
        (good if fine else bad)[f"teacher {dataset}/{name}"] = f"{steps} steps, in {len(seen)} rows"
    for name, students in small.fits.items():
        seen = finished & set(students)
        there = (root / f"fits/{name}/seed0/metrics.json").is_file()
        (good if there and seen else bad)[f"fit {name}"] = f"in {len(seen)} rows"
    return good, bad


def _count(found: dict[str, str], what: str) -> str:
    """Return how many of each kind there are; arms that several studies show count once."""
    arms = {k.rpartition("/")[2] for k in found if k.startswith("arm ")}
    rows = sum(k.startswith("arm ") for k in found)
    teachers, fits = (sum(k.startswith(kind) for k in found) for kind in ("teacher ", "fit "))
    return f"{what}: {len(arms)} students in {rows} rows, {teachers} teachers, {fits} fits"


def _steps(path: Path) -> int:
    """Return how many optimizer steps a history tells of."""
    if not path.is_file():
        return 0
    with open(path, newline="", encoding="utf-8") as f:
        return max((int(row["step"]) for row in csv.DictReader(f)), default=0)


def _rows(path: Path) -> set[str]:
    """Return the arms of a study's table that have a test accuracy."""
    if not path.is_file():
        return set()
    with open(path, newline="", encoding="utf-8") as f:
        return {row["arm"] for row in csv.DictReader(f) if row["top1_mean"]}


def _jobs(small: Reduced) -> list[costs.Job]:
    """Return the jobs of the project in the working directory, those of several studies once."""
    settings = params.load()
    return list({j.key: j for study in small.arms for j in costs.jobs_of(settings, study)}.values())


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
