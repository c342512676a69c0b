import os
from importlib import util
from pathlib import Path

import pytest
import yaml

from tests.slurm import service
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
    made.said = made.run()
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
