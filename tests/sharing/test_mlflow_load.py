"""MLflow fed by many jobs at a time, from a data base and through a server that is killed."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnprior.source import PACKAGE
from attnprior.workflow import tracking
from tests.sharing import load
from tests.sharing.servers import Server, black_hole, free_port, replies_lost
from tests.workflow.project import Project

ROOT = Path(__file__).resolve().parents[2]
SERVER_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")},
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return {**clean, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **more}


def mlflow_server(folder: Path) -> Server:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
    ]
    command += ["--default-artifact-root", str(folder / "artifacts"), "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    return Server(command, port, folder / "server.log", SERVER_ENV)


def follower(root: Path, **more: str) -> subprocess.Popen:
    """Start the process that `attnprior run` starts beside the jobs."""
    (root / ".snakemake/locks").mkdir(parents=True, exist_ok=True)
    (root / ".snakemake/locks/0.output.lock").touch()
    return subprocess.Popen(
        [sys.executable, "-m", "attnprior.workflow.tracking", "--follow"],
        cwd=root,
        env=environment(**more),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def writer(root: Path, jobs: int, steps: int, pause: float) -> subprocess.Popen:
    arguments = [str(root), str(jobs), str(steps), str(pause)]
    return subprocess.Popen([sys.executable, "-m", "tests.sharing.load", *arguments], env=environment())


def finish(root: Path, child: subprocess.Popen) -> str:
    """Let the follower make its last pass after the jobs' end and return what it said."""
    (root / ".snakemake/locks/0.output.lock").unlink()
    said = child.communicate(timeout=300)[1]
    assert child.returncode == 0
    return said


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    for name in [k for k in os.environ if k.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_jobs_that_resume_and_fail_are_held_once_and_whole(root):
    load.write(root, jobs=8, steps=10)
    assert tracking.track(root).warning is None
    assert load.check(root, root / "mlflow.db", jobs=8) == 8 * 10 * len(load.METRICS) + 8


@pytest.mark.faults
def test_64_jobs_at_a_time_into_a_data_base_that_is_deleted_and_rebuilt(root):
    child = follower(root)
    assert writer(root, jobs=64, steps=30, pause=0.7).wait(timeout=300) == 0
    assert finish(root, child) == ""
    points = load.check(root, root / "mlflow.db", jobs=64)
    before = sorted(load.stored(root / "mlflow.db"))
    for path in root.glob("mlflow.db*"):
        path.unlink()
    assert tracking.pending(root)
    assert tracking.track(root).points == points
    assert sorted(load.stored(root / "mlflow.db")) == before
    load.check(root, root / "mlflow.db", jobs=64)


@pytest.mark.faults
def test_64_jobs_at_a_time_through_a_server_that_is_killed_twice(root, tmp_path, monkeypatch):
    with mlflow_server(tmp_path) as server:
        uri = f"http://127.0.0.1:{server.port}"
        child = follower(root, MLFLOW_TRACKING_URI=uri)
        jobs = writer(root, jobs=64, steps=30, pause=1.0)
        for away in (1, 8):  # shorter and longer than a pass
            time.sleep(12)
            server.kill()
            time.sleep(away)
            server.start()
        assert jobs.wait(timeout=300) == 0
        said = finish(root, child)
        assert said.count("\n") == said.count("warning: MLflow at") <= 2, said
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert tracking.track(root).warning is None
        load.check(root, tmp_path / "server.db", jobs=64)
        before = sorted(load.stored(tmp_path / "server.db"))
        assert tracking.track(root).points == 0
        assert sorted(load.stored(tmp_path / "server.db")) == before


@pytest.mark.faults
@pytest.mark.parametrize(
    ("path", "lost"), [("/runs/create", {1, 3, 6}), ("/runs/log-batch", {2, 5}), ("/runs/update", {1, 4})]
)
def test_lost_replies_double_neither_runs_nor_points(root, tmp_path, monkeypatch, path, lost):
    load.write(root, jobs=6, steps=6)
    with mlflow_server(tmp_path) as server, replies_lost(server, path, lost) as (port, closed):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        for _ in range(4):
            last = tracking.track(root)
        assert set(closed) == lost
    assert last.warning is None
    load.check(root, tmp_path / "server.db", jobs=6)
    assert load.parents(tmp_path / "server.db") == 1


@pytest.mark.faults
@pytest.mark.workflow
@pytest.mark.parametrize("server", ["closed", "hangs", "silent"])
def test_a_study_runs_to_its_end_without_a_server_and_says_so_once(project: Project, server):
    with contextlib.ExitStack() as stack:
        if server == "closed":
            port = free_port()
        else:
            port = stack.enter_context(black_hole(accepts=server == "silent"))
        project.put("studies.digits.confidence", 0.9)
        tracked = {"ATTNPRIOR_TRACKING": "on", "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
        done = project.attnprior("run", **tracked)
    assert done.stderr.count("warning: MLflow at") == 1, done.stderr
    assert "results are not affected, later: attnprior track" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.planned() == set()
    assert project.dvc_changed() == set()
