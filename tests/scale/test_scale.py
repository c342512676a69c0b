"""A study of 2,000 jobs in 215 DVC stages: what each command takes, and how it grows with the study.

Only training is left out (see forge.py): engines, records, MLflow, tables, figures and page are real. It is
a benchmark, so `make test-scale` prints the table and other tests do without. Times by the clock depend on
the machine; what is compared is processor time: with the targets, twice over, and between two sizes.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnprior.files import sealed
from attnprior.workflow.dvc_arms import dvc_structure
from tests.scale import study
from tests.scale.measure import ATTNPRIOR, PYTHON, Cost, clone, measure
from tests.workflow.project import ROOT, Project

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("scale")]

HALF, FULL = 18, study.LARGEST  # students: 1,003 and 2,003 jobs
GROWTH = 2.6  # at most, where the number of jobs doubles
QUADRATIC = {"dvc status": 3.6}  # DVC reads params.yaml, which grows with the jobs, for each of its stages
MEMORY = 2048  # MiB
PAGE = 10.0  # MB
RECORD = (
    "import sys; from attnprior.workflow.engines import Stages\nwith Stages() as s: s.commit(sys.argv[1:])"
)
ARM = "arm@digits_a-random_50"
TARGETS = {  # seconds by the clock on two free cores; None: nothing is asked but linear growth
    "sync, nothing recorded": 300,
    "run: results, 215 stages": None,
    "run, nothing to do": 60,
    "snakemake -n": 15,
    "dvc status": 30,
    "one arm recorded": 10,
    "status": None,
    "check": None,
    "study show large": None,
    "track, first time": None,
    "track, nothing new": None,
    "run with MLflow, nothing to do": 60,
    "sync after clone and pull": 300,
    "stage compare": None,
    "stage draw": None,
    "stage report": 30,
}
RECORDS = {"compare": "run.json", "draw": "draw.run.json", "report": "report.run.json"}


@dataclass(frozen=True)
class Measured:
    """One study: what each of TARGETS took, the size of its page in MB."""

    costs: dict[str, Cost]
    page: float


def forged(root: Path, count: int) -> Project:
    """Return a project whose study has `count` students, with all but tables, figures and page."""
    project = study.empty(root, count)
    path = f"{root / 'src'}:{ROOT}"
    project.sh(PYTHON, "-m", "tests.scale.forge", timeout=1200, PYTHONPATH=path)
    return project


def measured_commands(project: Project) -> Measured:
    """Run every command and return what it took."""

    def attnprior(*args: str, **env: str) -> Cost:
        return measure(project, *ATTNPRIOR, *args, **env)

    found = {"sync, nothing recorded": attnprior("sync")}
    found["run: results, 215 stages"] = attnprior("run")
    found["run, nothing to do"] = attnprior("run")
    found["snakemake -n"] = measure(project, PYTHON, "-m", "snakemake", "-n")
    found["dvc status"] = measure(project, PYTHON, "-m", "dvc", "status")
    assert "nothing to do" in found["run, nothing to do"].output
    assert "Nothing to be done" in found["snakemake -n"].output
    assert "up to date" in found["dvc status"].output
    change(project.root / "runs/digits_a/random_50/seed0/evaluate.run.json")
    found["one arm recorded"] = measure(project, PYTHON, "-c", RECORD, ARM)
    for command in ("status", "check", "study show large"):
        found[command] = attnprior(*command.split())
    assert "not recorded in dvc.lock: study-large" in found["status"].output  # it has the folder of the arm
    found["track, first time"] = attnprior("track")
    found["track, nothing new"] = attnprior("track")
    found["run with MLflow, nothing to do"] = attnprior("run", ATTNPRIOR_TRACKING="on")
    copy = clone(project, project.root.with_name("clone"))
    found["sync after clone and pull"] = measure(copy, *ATTNPRIOR, "sync")
    assert " 0 to run" in found["sync after clone and pull"].output
    results = project.root / "results/large"
    for name, record in RECORDS.items():
        took = json.loads((results / record).read_text())
        seconds = took["seconds"]
        found[f"stage {name}"] = Cost(seconds["compute"], seconds["cpu"], took["max_rss_mb"], "")
    return Measured(found, (results / "report.html").stat().st_size / 1e6)


def change(record: Path) -> None:
    """Change a run.json: DVC sees another arm, no job another input."""
    record.write_text(json.dumps(sealed({**json.loads(record.read_text()), "commit": "another"})))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory) -> dict[int, Measured]:
    """Both studies, measured."""
    return {
        n: measured_commands(forged(tmp_path_factory.mktemp("scale") / "project", n)) for n in (HALF, FULL)
    }


def table(sizes: dict[int, Measured]) -> list[str]:
    """Return what each command took of the larger study, and how many times that of the smaller one."""
    lines = [
        f"{m.costs['check'].output.strip()}; page {m.page:.1f} MB (at most {PAGE:.0f})"
        for m in sizes.values()
    ]
    lines.append(
        f"{'':32} {'target':>8} {'clock':>8} {'cpu':>8} {'memory':>9} {'cpu, half':>10} {'growth':>7}"
    )
    for name, target in TARGETS.items():
        half, full = (sizes[n].costs[name] for n in (HALF, FULL))
        aim = f"{target} s" if target else ""
        took = f"{full.wall:6.1f} s {full.cpu:6.1f} s {full.memory:5.0f} MiB {half.cpu:8.1f} s"
        lines.append(f"{name:32} {aim:>8} {took} {full.cpu / half.cpu:7.2f}")
    return lines


@pytest.mark.parametrize("name", TARGETS)
def test_twice_the_jobs_take_about_twice_the_time(sizes, name):
    half, full = (sizes[n].costs[name].cpu for n in (HALF, FULL))
    assert full / max(half, 1.0) < QUADRATIC.get(name, GROWTH)


@pytest.mark.parametrize("name", TARGETS)
def test_little_memory_is_enough(sizes, name):
    assert sizes[FULL].costs[name].memory < MEMORY


@pytest.mark.parametrize("name", [n for n, target in TARGETS.items() if target])
def test_the_targets_hold(sizes, name):
    assert sizes[FULL].costs[name].cpu < 2 * (TARGETS[name] or 0)


def test_the_page_stays_small(sizes, measured):
    for line in table(sizes):
        measured(line)
    assert sizes[FULL].page < PAGE


def test_the_study_has_two_thousand_jobs_in_few_stages():
    graph = dvc_structure(study.settings(study.shipped(), FULL))["graph"]
    assert len(graph["arms"]) * study.SEEDS * 2 >= 1900
    assert sum(map(len, graph.values())) + 1 <= 250
