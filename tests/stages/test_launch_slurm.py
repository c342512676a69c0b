"""One training in an allocation of two nodes: the launchers find each other, the weights are those of one."""

import os
import shlex
import sys

import pytest

from tests import processes
from tests.slurm import service
from tests.stages import commands
from tests.stages.test_launch import CASES, arguments, close, made, own
from tests.stages.test_resume import finish

pytestmark = pytest.mark.slurm


@pytest.fixture
def two_nodes():
    """A running Slurm of two nodes, both this machine; skipped where it is not installed."""
    if (lacking := service.missing()) or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(lacking)}" if lacking else "root makes pretended GPUs")
    with service.running(cpus=1, nodes=2) as running:
        yield running


def test_two_nodes_share_a_training(project, two_nodes):
    rule, folder, _ = CASES["student"]
    log = own(project, "student")
    finish(commands.start(rule, arguments("student", 1), project))
    weights = made(project, folder, log)[0]
    command = [sys.executable, "-m", f"attnprior.stages.{rule}", *arguments("student", 2)]
    env = processes.environment(GLOO_SOCKET_IFNAME="lo")
    exported = ",".join(f"{k}={env[k]}" for k in ("PYTHONPATH", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"))
    two_nodes.ask(
        *("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--output", f"{project}/said"),
        *(f"--chdir={project}", f"--export=ALL,{exported}", "--wrap", shlex.join(command)),
        ok=False,
    )
    said = (project / "said").read_text()
    assert said.count("in 2 processes)") == 1, said + two_nodes.log()
    found, _, record, events = made(project, folder, log)
    assert close(weights, found) and record["processes"] == 2
    assert [e["step"] for e in events if e["event"] == "metrics"] == [1, 2, 3]
    steps = [name for name in two_nodes.nodes if "launch task" in (log_of(two_nodes, name).lower())]
    assert steps == two_nodes.nodes  # srun started a launcher on both


def log_of(slurm, node):
    return (slurm.folder / f"slurmd.{node}.log").read_text(errors="replace")
