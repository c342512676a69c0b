import json
import os
import re
import subprocess
from importlib import util
from pathlib import Path

import pytest
import yaml

from tests.slurm import service
from tests.workflow import background
from tests.workflow import project as projects

PROFILE = "workflow/profiles/slurm"
CPUS = int(os.environ.get("ATTNPRIOR_TEST_CPUS", os.cpu_count() or 2))


@pytest.fixture(scope="session")
def slurm():
    """A running Slurm; skipped where it is not installed."""
    lacking = service.missing()
    lacking += [] if util.find_spec("snakemake_executor_plugin_slurm") else ["Snakemake's Slurm plugin"]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}; make test-slurm installs them as root")
    if os.geteuid() != 0:
        pytest.skip("pretended GPUs are device files, which only root makes")
    with service.running(CPUS) as running:
        yield running


class ClusterProject(projects.Project):
    """A checkout whose jobs Slurm runs. Status checks are frequent, and trainings ask for a GPU each."""

    slurm: service.Slurm
    said: subprocess.CompletedProcess  # of the run that made it
    jobs: dict[str, str]  # Slurm's, of that run

    def environment(self, **more: str) -> dict[str, str]:
        store = f"sqlite:///{self.root}/mlflow.db"
        on = {"ATTNPRIOR_TRACKING": "on", "MLFLOW_TRACKING_URI": store}
        return {**self.slurm.environment, **on, **({"ATTNPRIOR_CHECKPOINT_SECONDS": "0"} | more)}

    def run(self, *args: str, ok: bool = True, **more: str):
        return self.attnprior("run", "--", "--profile", PROFILE, *args, ok=ok, **self.environment(**more))


def hurried(project: projects.Project) -> None:
    """Let the shipped profile look more often, and give trainings a GPU though they compute on the CPU."""
    path = project.root / PROFILE / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values.update(
        {"slurm-init-seconds-before-status-checks": 2, "seconds-between-status-checks": 2, "latency-wait": 10}
    )
    values["set-resources"] = {"train_student": {"gpu": 1}}
    path.write_text(yaml.safe_dump(values))


@pytest.fixture(scope="session")
def blank(slurm, tmp_path_factory):
    """The small project with nothing made; no test changes it."""
    made = ClusterProject(projects.create(tmp_path_factory.mktemp("cluster") / "project").root)
    made.slurm = slurm
    hurried(made)
    made.commit("Profile")
    return made


@pytest.fixture(scope="session")
def whole(blank, tmp_path_factory):
    """The small study, made by one run on Slurm; no test changes it."""
    made = copied(blank, tmp_path_factory.mktemp("whole") / "project")
    before = made.slurm.jobs("all")
    made.said = made.run()
    made.jobs = {n: comment for n, comment in made.slurm.jobs("all").items() if n not in before}
    return made


@pytest.fixture(scope="session")
def alone(blank, tmp_path_factory):
    """The small study, made on this machine without Slurm; no test changes it."""
    made = copied(blank, tmp_path_factory.mktemp("alone") / "project")
    made.attnprior("run")
    return made


@pytest.fixture
def cluster(whole, tmp_path):
    """The finished project as a test may change it."""
    return copied(whole, tmp_path / "project")


def copied(project: ClusterProject, root: Path) -> ClusterProject:
    made = ClusterProject(project.copy(root).root)
    made.slurm = project.slurm
    return made


def student_of(comment: str) -> str | None:
    """Return DATASET/STUDENT/seedN of Slurm's comment on a job that trains a student, None for other jobs."""
    found = re.fullmatch(r"rule_train_student_wildcards_(\w+?)_(\w+)_(\d+)", comment)
    return f"{found[1]}/{found[2]}/seed{found[3]}" if found else None


def events(project, job):
    text = (project.root / "logs" / f"{job}.events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


class Background(background.Background):
    """A run that a test disturbs."""

    waits, ends = 600, 1200

    def __init__(self, project, *args, **more):
        super().__init__(project, "run", "--", "--profile", PROFILE, *args, **more)

    def seen(self):
        return self.project.slurm.log()

    def training(self):
        """Return Slurm's number of a student that has finished an epoch and trains, or None."""
        for number, comment in self.project.slurm.jobs("RUNNING").items():
            if student := student_of(comment):
                job = f"train_student/{student}"
                path = self.project.root / "logs" / f"{job}.events.jsonl"
                if path.exists() and '"metrics"' in path.read_text():
                    return number, job
        return None

    def caught(self):
        found = []
        self.until(lambda: found.append(self.training()) or found[-1] is not None)
        return found[-1]
