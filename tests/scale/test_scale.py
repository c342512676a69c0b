"""A study of 2,000 jobs in 215 DVC stages: what each command takes, and that nothing grows faster than linearly.

Only training is left out (see forge.py): both engines, the records, MLflow, tables, figures and page are real.
A benchmark by nature, so apart from all other tests: `make test-scale` prints the table. Times by the clock
depend on the machine; held to the targets (twice over) and compared between the sizes is processor time.
"""

import json
from pathlib import Path

import pytest

from attnprior.workflow.graph import dvc_structure
from tests.scale import study
from tests.scale.measure import ATTNPRIOR, PYTHON, Cost, clone, measure
from tests.workflow.project import ROOT, Project

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("scale")]

SIZES = (18, study.LARGEST)  # students: 1,003 and 2,003 jobs
GROWTH = 2.6  # at most, where the number of jobs doubles
MEMORY = 2048  # MiB
TRACKED = {"ATTNPRIOR_TRACKING": "on"}
RECORD = "import sys; from attnprior.workflow.engines import Stages\nwith Stages() as s: s.commit(sys.argv[1:])"
COMMANDS = {  # seconds, by the aims of the project
    "attnprior sync, no records": 300,
    "attnprior run: results, all stages": None,
    "attnprior run, nothing to do": 60,
    "snakemake -n": 15,
    "dvc status": 30,
    "one changed arm recorded": 10,
    "attnprior status": None,
    "attnprior check": None,
    "attnprior study show": None,
    "attnprior track": None,
    "attnprior track, nothing new": None,
    "attnprior run, tracked": 60,
    "attnprior sync after clone and pull": 300,
}
STAGES = {"compare": ("run.json", None), "draw": ("draw.run.json", None), "report": ("report.run.json", 30)}


def forged(root: Path, count: int) -> Project:
    """Return a project whose study has `count` students, with all but tables, figures and page."""
    project = study.empty(root, count)
    project.sh(PYTHON, "-m", "tests.scale.forge", timeout=1200, PYTHONPATH=f"{root / 'src'}:{ROOT}")
    project.commit("Set up")
    return project


def commands(project: Project) -> dict[str, Cost]:
    """Return what each of COMMANDS takes."""

    def attnprior(*args: str, **env: str) -> Cost:
        return measure(project, *ATTNPRIOR, *args, **env)

    found = {"attnprior sync, no records": attnprior("sync")}
    found["attnprior run: results, all stages"] = attnprior("run")
    found["attnprior run, nothing to do"] = attnprior("run")
    found["snakemake -n"] = measure(project, PYTHON, "-m", "snakemake", "-n")
    found["dvc status"] = measure(project, PYTHON, "-m", "dvc", "status")
    assert "nothing to do" in found["attnprior run, nothing to do"].output
    assert "Nothing to be done" in found["snakemake -n"].output
    assert "up to date" in found["dvc status"].output
    change(project, "runs/digits_a/random_50/seed0/evaluate.run.json")
    found["one changed arm recorded"] = measure(project, PYTHON, "-c", RECORD, "arm@digits_a-random_50")
    for name in ("status", "check", "study show"):
        arguments = [*name.split(), *(["large"] if name == "study show" else [])]
        found[f"attnprior {name}"] = attnprior(*arguments)
    assert "not recorded in dvc.lock: nothing" in found["attnprior status"].output
    found["attnprior track"] = attnprior("track")
    found["attnprior track, nothing new"] = attnprior("track")
    found["attnprior run, tracked"] = attnprior("run", **TRACKED)
    copy = clone(project, project.root.with_name("clone"))
    found["attnprior sync after clone and pull"] = measure(copy, *ATTNPRIOR, "sync")
    assert " 0 to run" in found["attnprior sync after clone and pull"].output
    return found


def change(project: Project, path: str) -> None:
    """Change a record of an arm: DVC sees another arm, no job has another input."""
    file = project.root / path
    file.write_text(json.dumps({**json.loads(file.read_text()), "commit": "another"}))


def stages(project: Project) -> dict[str, Cost]:
    """Return what the jobs that make the results took, from their own records."""
    folder, found = project.root / "results/large", {}
    for name, (record, _) in STAGES.items():
        took = json.loads((folder / record).read_text())
        found[name] = Cost(took["seconds"]["compute"], took["seconds"]["compute"], took["max_rss_mb"], "")
    return found


@pytest.fixture(scope="module")
def costs(tmp_path_factory, request) -> dict[int, dict[str, Cost]]:
    """Return what everything takes, by number of students; prints the table."""
    say = request.config.pluginmanager.getplugin("terminalreporter").write_line
    found = {}
    for count in SIZES:
        project = forged(tmp_path_factory.mktemp("scale") / "project", count)
        jobs = commands(project)
        found[count] = jobs | stages(project)
        page = (project.root / "results/large/report.html").stat().st_size / 1e6
        figures = [p for p in (project.root / "results/large/figures").iterdir() if p.suffix == ".png"]
        say(f"\n{jobs['attnprior check'].output.strip()}")
        say(f"page {page:.1f} MB (at most 10 for 1,000 runs), {len(figures)} figures")
        found[count]["page"] = Cost(page, page, page, "")
    small, large = found.values()
    targets = COMMANDS | {name: target for name, (_, target) in STAGES.items()}
    say(f"\n{'':36} {'target':>6} {'wall':>7} {'cpu':>7} {'MiB':>6}   half: {'cpu':>7} growth")
    for name, target in targets.items():
        now, half = large[name], small[name]
        limit = f"{target} s" if target else "-"
        values = f"{now.wall:7.1f} {now.cpu:7.1f} {now.memory:6.0f}         {half.cpu:7.1f}"
        say(f"{name:36} {limit:>6} {values} {now.cpu / half.cpu:6.2f}")
    return found


@pytest.mark.parametrize("name", [*COMMANDS, *STAGES])
def test_twice_the_jobs_take_about_twice_the_time(costs, name):
    small, large = (costs[n][name].cpu for n in SIZES)
    assert large / max(small, 1.0) < GROWTH


@pytest.mark.parametrize("name", [*COMMANDS, *STAGES])
def test_a_large_study_needs_little_memory(costs, name):
    assert costs[study.LARGEST][name].memory < MEMORY


@pytest.mark.parametrize("name", [n for n, target in COMMANDS.items() if target])
def test_a_large_study_keeps_the_targets(costs, name):
    target = COMMANDS[name]
    assert target is not None
    assert costs[study.LARGEST][name].cpu < 2 * target


def test_the_page_of_a_thousand_runs_is_small_and_soon_made(costs):
    assert costs[study.LARGEST]["page"].wall < 10
    assert costs[study.LARGEST]["report"].cpu < 60


def test_the_study_has_two_thousand_jobs_in_few_stages():
    params = study.settings(study.shipped(), study.LARGEST)
    graph = dvc_structure(params)["graph"]
    arms = len(graph["arms"])
    assert 2 * study.SEEDS * arms > 1850
    assert sum(map(len, graph.values())) + len(params["active"]) <= 250
