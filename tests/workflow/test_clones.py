"""Clones, checkouts and caches of every kind: what is there is not made again, what differs is said."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.project import Project

pytestmark = pytest.mark.faults
CACHE_TYPES = ("copy", "hardlink", "symlink", "reflink")


@pytest.fixture
def shared(project, tmp_path):
    """The finished project, pushed to a remote that is a folder."""
    project.dvc("remote", "add", "-d", "folder", str(tmp_path / "remote"))
    project.commit("Remote")
    project.dvc("push", "-q")
    return project


def clone(source: Project, root: Path, *options: str) -> Project:
    """Return a clone at another path; git gives its files the time of now."""
    url = source.root.resolve().as_uri() if options else str(source.root)
    source.sh("git", "clone", "-q", *options, url, str(root))
    return Project(root)


@contextlib.contextmanager
def with_reflinks(place: Path) -> Iterator[None]:
    """Let files in the new folder `place` be reflinked: if its file system has none, XFS is mounted there."""
    place.mkdir()
    (place / "one").write_text("x")
    command = ["cp", "--reflink=always", str(place / "one"), str(place / "two")]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        yield
        return
    search = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    make = shutil.which("mkfs.xfs", path=search)
    if os.geteuid() or make is None:
        pytest.skip(
            "this file system has no reflinks; needs root and xfsprogs (`make test-faults` installs it)"
        )
    image = place.with_suffix(".xfs")
    with open(image, "wb") as f:
        f.truncate(600 * 2**20)  # sparse
    subprocess.run([make, "-q", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False).returncode:
        pytest.skip("this file system has no reflinks, and XFS cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        image.unlink()


def assert_settled(project: Project) -> None:
    assert project.planned() == set()
    assert project.snakemake_planned() == set()
    assert project.dvc_changed() == set()


def assert_cache_intact(project: Project) -> None:
    """Every object of DVC's cache has the content of its name."""
    objects = [p for p in (project.root / ".dvc/cache/files/md5").glob("*/*") if p.is_file()]
    assert len(objects) > 20
    for path in objects:
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        assert digest == (path.parent.name + path.name).removesuffix(".dir")


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_type_of_cache_serves_a_clone_two_commits_and_a_run(shared, tmp_path, kind):
    place = tmp_path / "elsewhere"
    with with_reflinks(place) if kind == "reflink" else contextlib.nullcontext():
        assert_serves(shared, place / "clone", kind)


def assert_serves(shared: Project, place: Path, kind: str) -> None:
    copy = clone(shared, place)
    copy.dvc("config", "--local", "cache.type", kind)
    copy.dvc("pull", "-q")
    assert copy.root.joinpath("data/digits.safetensors").is_symlink() is (kind == "symlink")
    copy.attnprior("sync")
    assert_settled(copy)
    first, old = copy.git("rev-parse", "HEAD").strip(), copy.contents()
    assert old == shared.contents()

    copy.put("students.random.labels", 150)
    copy.attnprior("run")
    assert_settled(copy)
    assert_cache_intact(copy)
    second, new = copy.commit("Fewer labels"), copy.contents()
    assert new != old
    for commit, expected in ((first, old), (second, new)):
        copy.git("checkout", "-q", commit)
        copy.dvc("checkout", "-q")
        copy.attnprior("sync")
        assert copy.planned() == set()
        assert copy.dvc_changed() == set()
        assert copy.contents() == expected
    assert_cache_intact(copy)


def test_a_shallow_clone_has_nothing_to_do(shared, tmp_path):
    copy = clone(shared, tmp_path / "clone", "--depth", "1")
    assert copy.git("rev-list", "--count", "HEAD").strip() == "1"
    copy.dvc("pull", "-q")
    copy.attnprior("sync")
    assert_settled(copy)
    assert copy.contents() == shared.contents()


def test_results_alone_can_be_pulled_and_the_plan_says_what_is_missing(shared, tmp_path):
    copy = clone(shared, tmp_path / "clone")
    copy.dvc("pull", "-q", "study-digits")
    assert (copy.root / "results/digits/report.html").is_file()
    assert not (copy.root / "runs").exists()
    planned = copy.planned()
    assert len(planned) == len(list(shared.root.rglob("*run.json")))  # every job: none has its inputs
    said = copy.attnprior("run", "-n").stdout
    assert "train_student/digits/copy/seed0: missing runs/digits/copy/seed0/weights.safetensors" in said
    copy.dvc("pull", "-q")
    copy.attnprior("sync")
    assert_settled(copy)


def test_collected_garbage_leaves_the_present_commit_whole(project):
    first, old = project.git("rev-parse", "HEAD").strip(), project.contents()
    project.put("students.random.labels", 150)
    project.attnprior("run")
    second, new = project.commit("Fewer labels"), project.contents()
    project.dvc("gc", "-q", "-w", "-f")
    assert_settled(project)
    assert_cache_intact(project)
    project.git("checkout", "-q", first)
    gone = project.dvc("checkout", "-q", ok=False)
    assert gone.returncode != 0  # the older bytes are nowhere: made again, they are the same
    project.attnprior("run")
    assert_settled(project)
    assert project.contents() == old
    project.git("checkout", "-q", "-f", second)
    project.dvc("checkout", "-q", "--force")
    project.attnprior("sync")
    assert_settled(project)
    assert project.contents() == new


def test_a_clone_without_the_remote_runs_and_says_what_differs_from_the_record(project, tmp_path):
    copy = clone(project, tmp_path / "clone")
    name = "runs/digits/copy/seed1/weights.safetensors"
    listed = (copy.root / "artifacts.sha256").read_text()
    assert re.search(rf"^[0-9a-f]{{64}}  {name}$", listed, re.MULTILINE)
    said = copy.attnprior("run").stdout
    stages = 1 + 1 + 1 + 3 + 1  # data, teacher, fit, arms, study
    count = len(listed.splitlines())
    assert f"dvc.lock: {stages} stages recorded anew" in said
    assert f"{count} identical, 0 different, 0 not listed" in said
    # dvc.lock holds the records of the machine, too; every artifact is as recorded.
    assert copy.git("status", "--porcelain").split() == ["M", "dvc.lock"]
    assert_settled(copy)
    copy.sh("sha256sum", "--quiet", "-c", "artifacts.sha256")
    copy.commit("Made again")

    # As on a machine that computes something else: the list before has another hash.
    changed = re.sub(rf"^[0-9a-f]{{64}}  {name}$", f"{'0' * 64}  {name}", listed, flags=re.MULTILINE)
    (copy.root / "artifacts.sha256").write_text(changed)
    copy.sh("rm", "-r", "runs/digits/copy")
    said = copy.attnprior("run").stdout
    assert "dvc.lock: 2 stages recorded anew" in said  # the arm and the study
    assert "1 different, 0 not listed" in said
    assert f"different: {name}\n" in said
    assert (copy.root / "artifacts.sha256").read_text() == listed
