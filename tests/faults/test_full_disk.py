"""Full disks, read-only folders and memory limits: one clear line, and the next run ends with the same bytes.

Small disks are mounted, in a mount namespace of their own: this needs the right to make one.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys

import pytest

from tests.faults import disturb, study
from tests.workflow.project import environment

NAMESPACE = ["unshare", "--mount", "--map-root-user"] if os.geteuid() else ["unshare", "--mount"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="may not mount a disk (needs root or `unshare -rm`)")


class Small:
    """A disk of `size` bytes on `folder` of a project, with what was there, in a shell that lives on."""

    def __init__(self, project, folder: str, options: str) -> None:
        place = project.root / folder
        place.mkdir(parents=True, exist_ok=True)
        content = project.root.with_name(f"{project.root.name}-content")
        script = (
            f"set -e; cp -a {place} {content}; mount -t tmpfs -o {options} none {place};"
            f" cp -a {content}/. {place}; rm -r {content}; echo mounted"
        )
        self._shell = subprocess.Popen(
            [*NAMESPACE, "sh"],
            cwd=project.root,
            env=environment(**study.TRACKED),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        status, said = self.sh(script)
        assert status == 0, said

    def sh(self, command: str) -> tuple[int, str]:
        """Run a command inside and return its exit status and output."""
        self._shell.stdin.write(f"( {command} ) 2>&1 </dev/null; s=$?; echo; echo END $s\n")
        self._shell.stdin.flush()
        out = []
        for line in self._shell.stdout:
            if line.startswith("END "):
                return int(line.split()[1]), "".join(out)
            out.append(line)
        raise AssertionError("".join(out))

    def run(self) -> tuple[int, str]:
        return self.sh(f"{sys.executable} -m attnprior run")

    def close(self) -> None:
        self._shell.stdin.close()
        self._shell.wait()


@contextlib.contextmanager
def small(project, folder, options):
    disk = Small(project, folder, options)
    try:
        yield disk
    finally:
        disk.close()


def assert_one_clear_line(said: str) -> None:
    assert "Traceback" not in said, said
    assert "Logging error" not in said, said
    assert "No space left" in said or "disk is full" in said or "cannot be written" in said, said


def copy_again(project):
    shutil.rmtree(project.root / "runs/digits/copy")


@needs_mount
@pytest.mark.faults
@pytest.mark.parametrize(
    ("folder", "room"),
    [
        ("runs", 40),  # KiB: not even the weights
        ("runs", 560),  # weights, not all predictions and records
        ("logs", 8),  # events
        ("checkpoints", 40),
        (".dvc/cache", 100),
        (".snakemake", 0),  # Snakemake's and our own records
        ("results", 60),
    ],
)
def test_a_full_disk_is_one_line_and_room_is_enough(project, expected, folder, room):
    copy_again(project)
    (project.root / folder).mkdir(exist_ok=True)
    used = sum(p.stat().st_size + 4096 for p in (project.root / folder).rglob("*")) // 1024
    if folder in (".dvc/cache", "results"):  # the room that was of the former files would be enough
        shutil.rmtree(project.root / folder)
        used = 0
    if folder == ".dvc/cache":
        (project.root / "dvc.lock").unlink()
    with small(project, folder, f"size={used + 2000}k") as disk:
        filler = project.root / folder / "filler"
        disk.sh(f"cat /dev/zero > {filler}; truncate -s -{room}K {filler}")
        status, said = disk.run()
        if status == 0:  # only what nobody needs was lost: events
            assert folder == "logs" and "Traceback" not in said, said
        else:
            assert_one_clear_line(said)
        disk.sh(f"rm -f {filler}; mount -o remount,size=1g {project.root / folder}")
        status, said = disk.run()
        assert status == 0, said
        assert "Traceback" not in said
        disk.sh(f"cp -a {project.root / folder} {project.root.with_name('seen')}")
    shutil.rmtree(project.root / folder)
    shutil.move(project.root.with_name("seen"), project.root / folder)
    assert study.differing(project, expected) == []
    assert study.wrong_records(project, expected) == []


@needs_mount
@pytest.mark.faults
def test_a_store_on_a_full_disk_costs_a_warning_and_is_filled_later(project, expected, tmp_path):
    copy_again(project)
    with small(project, "store", "size=400k") as disk:
        uri = f"MLFLOW_TRACKING_URI=sqlite:///{project.root}/store/mlflow.db"
        status, said = disk.sh(f"{uri} {sys.executable} -m attnprior run")
        assert status == 0, said
        assert said.count("warning: MLflow at ") == 1 and "Traceback" not in said, said
        disk.sh(f"mount -o remount,size=100m {project.root}/store")
        status, said = disk.sh(f"{uri} {sys.executable} -m attnprior run")
        assert status == 0 and "warning" not in said, said
        disk.sh(f"cp {project.root}/store/mlflow.db {project.root}/mlflow.db")
    assert study.differing(project, expected) == []
    assert study.stored_points(project) == study.expected_points(project)


@needs_mount
@pytest.mark.faults
@pytest.mark.parametrize("folder", [".dvc/cache", ".snakemake", "."])
def test_a_read_only_folder_is_one_line_and_nothing_is_lost(project, expected, folder):
    copy_again(project)
    (project.root / "dvc.lock").unlink()
    shutil.rmtree(project.root / ".dvc/cache")
    (project.root / ".dvc/cache").mkdir()
    with small(project, "store", "size=1m") as disk:
        place = project.root / folder
        disk.sh(f"mount --bind {place} {place} && mount -o remount,ro,bind {place}")
        status, said = disk.sh(f"cd {project.root} && {sys.executable} -m attnprior run")
        assert status == 1, said
        assert "Traceback" not in said
        assert len(disturb.errors(said)) == 1, said
        assert "Read-only" in said or "read-only" in said, said
    project.attnprior("run")
    assert study.differing(project, expected) == []
    assert study.wrong_records(project, expected) == []


@pytest.mark.faults
@pytest.mark.parametrize("what", ["address space", "kill"])
def test_a_job_without_memory_is_one_line_and_the_others_finish(project, expected, what):
    copy_again(project)
    shutil.rmtree(project.root / "runs/digits/impulse")
    run = disturb.Run(project)

    def the_job():
        return run.below(r"stages\.train_student .*--student copy")

    assert run.until(lambda: bool(the_job())), run.finish().err
    job = the_job()[0]
    if what == "kill":  # as the kernel does
        job.kill()
    else:
        resource.prlimit(job.pid, resource.RLIMIT_AS, (2**28, 2**28))
    ended = run.finish()
    assert ended.status == 1
    assert "Traceback" not in ended.out + ended.err, ended.err
    (line,) = disturb.errors(ended.err)
    assert line.startswith("error: train_student/digits/copy/seed0: ")
    assert "(log: logs/train_student/digits/copy/seed0.log)" in line
    assert any(word in line for word in ("emory", "killed", "allocate", "mmap", "failed to map")), line
    assert (project.root / "runs/digits/impulse/seed0/metrics.json").exists()
    project.attnprior("run")
    assert study.differing(project, expected) == []
