"""`dvc exp`: runs with other settings, here and in DVC's own folders, and what is left of them."""

import json

import pytest

from tests.workflow.project import Project

pytestmark = [pytest.mark.faults, pytest.mark.workflow]
METRICS = "results/digits/metrics.json"


def workspace(project: Project) -> dict:
    """Return what an experiment elsewhere must not change."""
    records = {str(p.relative_to(project.root)): p.read_bytes() for p in project.root.rglob("*run.json")}
    lock = (project.root / "dvc.lock").read_bytes()
    return {"status": project.git("status", "--porcelain"), "lock": lock, **project.contents(), **records}


def experiments(project: Project) -> dict[str, dict]:
    """Return {name: metrics by dotted key} of the experiments of HEAD, and of HEAD as "main"."""
    shown = json.loads(project.dvc("exp", "show", "--json").stdout)
    head = next(s for s in shown if s["name"] == "main")
    found = {"main": head["data"]["metrics"][METRICS]["data"]}
    for experiment in head["experiments"] or []:
        rev = experiment["revs"][-1]
        assert not rev.get("error"), rev["error"]
        found[experiment["name"]] = rev["data"]["metrics"][METRICS]["data"]
    return found


def accuracy(metrics: dict, student: str) -> float:
    return metrics["model_i"][student]["top1_mean"]


@pytest.fixture(scope="module")
def expected(finished: Project, tmp_path_factory):
    """What `attnprior run` makes of the change, in a checkout of its own; no test changes it."""
    other = finished.copy(tmp_path_factory.mktemp("expected") / "project")
    other.put("students.random.labels", 150)
    other.attnprior("run")
    return other


@pytest.mark.parametrize("way", ["here", "temp", "queue", "run-all"])
def test_an_experiment_gives_what_a_run_gives_and_is_shown_beside_it(
    project: Project, expected: Project, way
):
    before = workspace(project)
    change = ["-S", "students.random.labels=150", "-n", "fewer"]
    if way == "here":
        project.dvc("exp", "run", *change)
    elif way == "temp":
        project.dvc("exp", "run", "--temp", *change)
    else:
        project.dvc("exp", "run", "--queue", *change)
        if way == "run-all":
            project.dvc("exp", "run", "--run-all")
        else:
            project.dvc("queue", "start", "-j", "1")
            wait_for_queue(project)
    shown = experiments(project)
    assert accuracy(shown["main"], "random") != accuracy(shown["fewer"], "random")
    assert accuracy(shown["main"], "copy") == accuracy(shown["fewer"], "copy")
    assert shown["fewer"] == expected.record(METRICS)
    if way != "here":
        assert workspace(project) == before
        assert project.planned() == set()
        log = project.root / "logs/experiments/fewer/train_student/digits/random/seed0.events.jsonl"
        assert '"invocation":"fewer"' in log.read_text()
        project.dvc("exp", "apply", "fewer")
    assert project.contents() == expected.contents()
    project.attnprior("sync")
    assert project.planned() == project.snakemake_planned() == set()
    assert project.dvc_changed() == set()


def wait_for_queue(project: Project) -> None:
    """Wait until the worker of the queue has nothing left to do."""
    project.sh("bash", "-c", "until dvc queue status | grep -qE '(Success|Failed)'; do sleep 1; done")
    assert "Success" in project.dvc("queue", "status").stdout
    project.dvc("queue", "stop")


def test_an_experiment_that_fails_leaves_the_workspace_and_says_why(project: Project):
    before = workspace(project)
    done = project.dvc("exp", "run", "--temp", "-S", "students.random.labels=150000", ok=False)
    assert done.returncode != 0
    assert "labels" in done.stdout + done.stderr
    assert workspace(project) == before


def test_a_changed_structure_is_refused_in_one_line_that_says_what_to_do(project: Project):
    done = project.dvc("exp", "run", "--temp", "-S", "studies.digits.seeds=[0,1,2]", ok=False)
    assert done.returncode != 0
    assert "run `attnprior sync`" in done.stdout + done.stderr
