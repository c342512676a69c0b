"""Starting the processes that share a training, by torchrun's launcher, and ending with their status.

The processes run the same stage with the same arguments, on one machine or several. Several are those of a
Slurm allocation (SLURM_JOB_NUM_NODES), on each of which `srun` starts a launcher; elsewhere the same command
is started on each, with ATTNPRIOR_NODES, ATTNPRIOR_NODE (its number, from 0) and ATTNPRIOR_RENDEZVOUS
(HOST:PORT, a free port of number 0 that all reach).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from attnprior.errors import UserError, one_line, tell
from attnprior.train import stopping

NODES, NODE, RENDEZVOUS = "ATTNPRIOR_NODES", "ATTNPRIOR_NODE", "ATTNPRIOR_RENDEZVOUS"
PORTS = 20_000, 20_000  # the first for a rendezvous in Slurm, and their number


def launch(rule: str, argv: Sequence[str], processes: int) -> int:
    """Run stage `rule` with the arguments `argv` in `processes` processes and return the exit status.

    That is process 0's where it failed, else that of the first that did; 128 + n after signal n.
    """
    module = f"attnprior.stages.{rule}"
    try:
        nodes = _nodes()
        if processes % nodes:
            raise UserError(
                f"the recipe has processes {processes}, which {nodes} nodes cannot share evenly;"
                f" use a multiple of {nodes}, or another number of nodes"
            )
        if nodes > 1 and RENDEZVOUS not in os.environ:
            return _on_each_node(module, argv, nodes)
        where = ["--standalone"] if nodes == 1 else _meeting(nodes)
    except UserError as e:
        tell(f"error: {one_line(e)}")
        return 1
    return _here(module, argv, processes // nodes, where)


def _nodes() -> int:
    for name in (NODES, "SLURM_JOB_NUM_NODES"):
        if text := os.environ.get(name):
            if not text.isdecimal() or int(text) < 1:
                raise UserError(f"{name}: {text!r} is no number of nodes from 1; correct it or unset it")
            return int(text)
    return 1


def _meeting(nodes: int) -> list[str]:
    """Return torchrun's arguments for one of several nodes, as the environment tells them."""
    meeting = os.environ[RENDEZVOUS]
    host, _, port = meeting.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{RENDEZVOUS}: {meeting!r} is not HOST:PORT; name a free port of node 0")
    node = os.environ.get(NODE) or os.environ.get("SLURM_NODEID", "")
    if not node.isdecimal() or int(node) >= nodes:
        raise UserError(f"{NODE}: {node!r} is no number from 0 to {nodes - 1}; each node has its own")
    return [f"--nnodes={nodes}", f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]


def _on_each_node(module: str, argv: Sequence[str], nodes: int) -> int:
    """Start this stage once on each node of the Slurm allocation and return srun's exit status."""
    job, hosts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
    if job is None or hosts is None:
        raise UserError(f"{NODES}: {nodes}, but not {RENDEZVOUS}; set it to HOST:PORT, the same on all nodes")
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=False
    )
    if listed.returncode or not listed.stdout.split():
        raise UserError(f"scontrol show hostnames {hosts}: {one_line(listed.stderr)[:200] or 'no host'}")
    port = PORTS[0] + int(job) % PORTS[1]
    os.environ[RENDEZVOUS] = f"{listed.stdout.split()[0]}:{port}"
    step = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    os.execvp("srun", [*step, "--kill-on-bad-exit=0", sys.executable, "-m", module, *argv])


def _here(module: str, argv: Sequence[str], each: int, where: list[str]) -> int:
    """Run `each` processes on this machine and return the exit status; `where` is what torchrun is told."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process sets its own
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    own = "--signals-to-handle=SIGQUIT"  # not those that a training takes as a request: they are passed on
    for number in stopping.SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _pass_on)
    try:
        torchrun([*where, f"--nproc-per-node={each}", "--max-restarts=0", own, "-m", module, *argv])
    except ChildFailedError as e:
        status = e.failures[min(e.failures)].exitcode
        return status if status > 0 else 128 - status
    return 0


def _pass_on(number: int, _frame: FrameType | None) -> None:
    """Send a signal to the processes: they save their state and end, and this one ends with their status."""
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
