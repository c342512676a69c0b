"""What a command takes: time, processor time with that of its children, memory."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.workflow.project import Project, environment

PYTHON = sys.executable
ATTNPRIOR = (PYTHON, "-m", "attnprior")


@dataclass(frozen=True)
class Cost:
    """One command: seconds by the clock and of the processor, MiB of its largest process, its output."""

    wall: float
    cpu: float
    memory: float
    output: str


def measure(project: Project, *command: str, **env: str) -> Cost:
    """Run a command in a project and return what it took; it must end well."""
    output = project.root.with_name(f"{project.root.name}.txt")
    begin = time.perf_counter()
    with open(output, "w", encoding="utf-8") as f:
        child = subprocess.Popen(
            command, cwd=project.root, env=environment(**env), stdout=f, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    said = output.read_text(encoding="utf-8")
    assert child.returncode == 0, f"{command}: {child.returncode}\n{said[-3000:]}"
    kib = 1 if sys.platform != "darwin" else 1 / 1024
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * kib / 1024, said)


def clone(project: Project, root: Path) -> Project:
    """Return a clone of a committed project, its artifacts pulled from a remote in a folder beside it."""
    project.dvc("remote", "add", "-d", "-f", "storage", str(project.root.with_name("storage")))
    project.dvc("push", "-q")
    project.commit("Results")
    project.sh("git", "clone", "-q", str(project.root), str(root))
    made = Project(root)
    made.dvc("pull", "-q")
    return made
