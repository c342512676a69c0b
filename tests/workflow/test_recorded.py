"""Recorded content is found by hash: in the workspace, DVC's cache or a remote, and nowhere else."""

import subprocess
import sys

import pytest

from attnprior.workflow.dvc_objects import Objects, md5
from attnprior.workflow.recorded import Recorded, locked_stages
from tests.workflow.project import environment


def dvc(*arguments):
    command = [sys.executable, "-m", "dvc", *arguments]
    subprocess.run(command, check=True, env=environment(), capture_output=True)


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory):
    """A stage with a file and a directory, recorded and pushed to a remote in a folder."""
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        subprocess.run(["git", "init", "-q"], check=True)
        dvc("init", "-q")
        (root / "dvc.yaml").write_text("stages:\n  s: {cmd: 'false', outs: [a.txt, d]}\n")
        (root / "a.txt").write_text("a")
        for name in ("d/x.txt", "d/sub/y.txt", "d/a/z.txt"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        dvc("commit", "-f")
        dvc("remote", "add", "-d", "storage", str(root / "storage"))
        dvc("push")
    return root


@pytest.fixture
def root(recorded_once, tmp_path, monkeypatch):
    """The same in a folder of its own, and not a byte of it elsewhere."""
    made = tmp_path / "checkout"
    subprocess.run(["cp", "-a", str(recorded_once), str(made)], check=True)
    monkeypatch.chdir(made)
    dvc("remote", "modify", "storage", "url", str(made / "storage"))
    return made


def look(root, path):
    objects = Objects(root / "fetched")
    try:
        return Recorded(locked_stages()["s"]["outs"], objects).find(path)
    finally:
        objects.close()


def remove(*names):
    subprocess.run(["rm", "-rf", *names], check=True)


def test_workspace_is_believed_only_where_its_hash_is_the_recorded_one(root):
    assert look(root, "a.txt") == root / "a.txt"
    (root / "a.txt").write_text("b")
    found = look(root, "a.txt")
    assert ".dvc/cache" in str(found) and found.read_text() == "a"


def test_files_of_a_directory_are_found_by_its_listing(root):
    remove("d")
    for name in ("d/x.txt", "d/sub/y.txt", "d/a/z.txt"):
        assert look(root, name).read_text() == name
    assert look(root, "d/other.txt") is None
    assert look(root, "e.txt") is None


def test_without_cache_and_remote_the_workspace_directory_must_be_exactly_the_recorded_one(root):
    remove(".dvc/cache", "storage")
    assert look(root, "d/x.txt") == root / "d/x.txt"
    (root / "d/more.txt").write_text("more")
    assert look(root, "d/x.txt") is None


def test_a_damaged_cache_is_not_believed_and_the_remote_helps(root):
    remove("d")
    cached = look(root, "d/x.txt")
    cached.chmod(0o644)
    cached.write_text("damaged")
    found = look(root, "d/x.txt")
    assert found.read_text() == "d/x.txt" and found.is_relative_to(root / "fetched")
    remove("storage", "fetched")
    assert look(root, "d/x.txt") is None


def test_what_is_fetched_does_not_enter_the_cache(root):
    remove("d", "a.txt", ".dvc/cache")
    assert look(root, "d/sub/y.txt").read_text() == "d/sub/y.txt"
    assert not list((root / ".dvc").glob("cache/files/md5/*/*"))


def test_md5_of_what_cannot_be_read_is_unknown(tmp_path):
    assert md5(tmp_path) is None and md5(tmp_path / "none") is None
