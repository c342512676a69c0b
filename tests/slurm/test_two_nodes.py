"""A training shared by two nodes, asked for by settings alone: recipe and profile."""

import os

import pytest
import yaml

from tests.slurm import conftest, service
from tests.workflow import project as projects

pytestmark = pytest.mark.slurm
ARM = "runs/digits/random/seed0"


@pytest.fixture
def two_nodes(slurm):  # where one Slurm can run, another can
    with service.running(cpus=1, nodes=2) as running:
        yield running


def test_recipe_and_profile_let_two_nodes_share_a_training(two_nodes, tmp_path):
    project = conftest.ClusterProject(projects.create(tmp_path / "project").root)
    project.slurm = two_nodes
    conftest.hurried(project)
    profile = project.root / conftest.PROFILE / "config.yaml"
    values = yaml.safe_load(profile.read_text())
    values["set-resources"] = {"train_student": {"nodes": 2, "tasks": 2}}
    values["set-threads"] = {"train_student": 1}  # on each node
    profile.write_text(yaml.safe_dump(values))
    shared = {"batch_size": 8, "accumulate": 4, "processes": 2, "sharded": True}
    project.put("students.random.overrides", shared)
    done = project.run(*("--until", "train_student"), ok=False, GLOO_SOCKET_IFNAME="lo")
    record = project.root / ARM / "run.json"
    assert record.exists(), done.stdout + done.stderr + two_nodes.log() + said(project)
    assert project.record(f"{ARM}/run.json")["processes"] == 2
    assert os.listdir(two_nodes.folder / "spool") and "in 2 processes, weights sharded)" in said(project)
    assert project.attnprior("check").returncode == 0


def said(project):
    path = project.root / "logs/train_student/digits/random/seed0.log"
    return path.read_text() if path.exists() else ""
