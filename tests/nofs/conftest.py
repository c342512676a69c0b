"""A submit host and two nodes on one machine that see no files of each other but those of an S3 server."""

import os
import shlex
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests.sharing import servers
from tests.workflow import project as projects

PROFILE = "workflow/profiles/remote"
KEYS = {"AWS_ACCESS_KEY_ID": "nofs", "AWS_SECRET_ACCESS_KEY": "secret-of-tests"}
# Whether mounts of a process's own can hide files from it, as for root outside of most containers.
HIDES = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    ).returncode
    == 0
)
# What ATTNPRIOR_REMOTE_START names: it hides the submit host's checkout, keeps nothing of its environment,
# and takes the node that stands in the file `node`.
START = """\
#!/bin/sh
cd /
export NODE=$(cat {tmp}/node)
echo "$NODE $*" >>{tmp}/started
exec env -i PATH={path} HOME={tmp} NODE="$NODE" ATTNPRIOR_REMOTE_SECONDS=1 {keys} \\
    {unshare} sh -c '{hide}; echo $$ >{tmp}/pid; exec {tmp}/$NODE/{profile}/node.sh "$@"' sh "$@"
"""


def small(params: dict) -> dict:
    """Return the shipped settings with 2 students that use a fit and a teacher, 2 seeds and few epochs."""
    params = projects.small(params)
    panel = params["studies"]["digits"]["panels"]["model_i"]
    panel.update(baseline="impulse", arms=["impulse", "copy"])
    return params


class SubmitHost(projects.Project):
    """A checkout whose jobs run on nodes `a` and `b`, clones of it beside it, through a bucket."""

    port: int
    bucket: Path  # where the server keeps its files

    def environment(self, **more: str) -> dict[str, str]:
        on = {"ATTNPRIOR_TRACKING": "on", "MLFLOW_TRACKING_URI": f"sqlite:///{self.root}/mlflow.db"}
        return {
            **on,
            **KEYS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "ATTNPRIOR_REMOTE_URL": f"s3://bucket/{self.root.parent.name}",
            "ATTNPRIOR_REMOTE_START": str(self.root.with_name("start.sh")),
            "ATTNPRIOR_CHECKPOINT_SECONDS": "0",
            **more,
        }

    def arguments(self, *args: str) -> list[str]:
        return ["run", "--", "--profile", PROFILE, "--seconds-between-status-checks", "1", *args]

    def run(self, *args: str, ok: bool = True, **more: str) -> subprocess.CompletedProcess:
        return self.attnprior(*self.arguments(*args), ok=ok, **self.environment(**more))

    def node(self, name: str) -> Path:
        return self.root.with_name(name)

    def send_to(self, name: str) -> None:
        """Let further jobs start on this node."""
        self.root.with_name("node").write_text(name)

    def at_url(self) -> dict[str, int]:
        """Return {name: when it was written} of all files at the URL."""
        folder = self.bucket / self.root.parent.name
        return {str(p.relative_to(folder)): p.stat().st_ctime_ns for p in folder.rglob("*") if p.is_file()}

    def started(self) -> list[str]:
        """Return "NODE URL JOB" of every job that was started."""
        path = self.root.with_name("started")
        return path.read_text().splitlines() if path.exists() else []

    def with_nodes(self) -> "SubmitHost":
        """Make the nodes' clones and the command that starts jobs there."""
        folder = self.root.parent
        for name in "ab":
            subprocess.run(["git", "clone", "-q", self.root, folder / name], check=True)
        keys = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        script = START.format(
            tmp=folder,
            path=shlex.quote(os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])),
            keys=shlex.join(f"{k}={v}" for k, v in keys.items()),
            unshare="unshare -m" if HIDES else "",
            hide=f"mount -t tmpfs none {self.root} && ls -A {self.root} >>{folder}/seen" if HIDES else "true",
            profile=PROFILE,
        )
        path = folder / "start.sh"
        path.write_text(script)
        path.chmod(0o755)
        self.send_to("a")
        return self


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    """The port of an S3 server, and the folder that is its only bucket."""
    if util.find_spec("snakemake_executor_plugin_cluster_generic") is None:
        pytest.skip("not installed: snakemake-executor-plugin-cluster-generic; make test-remote installs it")
    if not servers.has_program("rclone"):
        pytest.skip("not installed: rclone; make test-remote installs it")
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    with servers.s3_server(folder, *KEYS.values()) as server:
        yield server.port, folder / "bucket"


@pytest.fixture(scope="session")
def blank(bucket, tmp_path_factory):
    """The small project with nothing made; no test changes it."""
    made = SubmitHost(projects.create(tmp_path_factory.mktemp("blank") / "submit", small).root)
    made.port, made.bucket = bucket
    return made


@pytest.fixture(scope="session")
def whole(blank, tmp_path_factory):
    """The small study, made by one run on a node; no test changes it."""
    made = copied(blank, tmp_path_factory.mktemp("whole"))
    made.said = made.run()
    return made


@pytest.fixture(scope="session")
def alone(blank, tmp_path_factory):
    """The small study, made on the submit host itself; no test changes it."""
    made = copied(blank, tmp_path_factory.mktemp("alone"))
    made.attnprior("run")
    return made


@pytest.fixture
def host(blank, tmp_path):
    """The project with nothing made, as a test may change it."""
    return copied(blank, tmp_path)


@pytest.fixture
def finished_host(whole, tmp_path):
    """The finished project as a test may change it."""
    return copied(whole, tmp_path)


def copied(project: SubmitHost, folder: Path) -> SubmitHost:
    made = SubmitHost(folder / "submit")
    shutil.copytree(project.root, made.root, symlinks=True)
    made.port, made.bucket = project.port, project.bucket
    return made.with_nodes()
