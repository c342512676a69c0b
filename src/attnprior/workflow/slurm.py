"""What Slurm says before jobs are submitted, and jobs of a run that are still in its queue after it."""

import contextlib
import math
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line
from attnprior.workflow.scheduler import LOGS

EXECUTOR = "slurm"
ANSWER_SECONDS = 30.0
HEAD = 2**20  # characters of a log of Snakemake in which the name of its jobs stands


@dataclass(frozen=True)
class Partition:
    """What one partition allows. Minutes are infinite where it has no limit."""

    minutes: float
    memory_mb: int
    gpu_types: frozenset[str]  # "" where Slurm names none


@dataclass(frozen=True)
class Request:
    """What an attempt of a job asks for."""

    job: str
    attempt: int
    resources: dict[str, Any]


def ask(*command: str) -> str:
    """Return what a command of Slurm prints.

    Raises:
        UserError: it is not installed, fails, or the controller does not answer.
    """
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except OSError as e:
        raise UserError(
            f"executor slurm: {command[0]} cannot be run ({e.strerror}); use a login node of the cluster"
        ) from e
    except subprocess.TimeoutExpired:
        raise UserError(
            f"Slurm does not answer: {command[0]} took more than {ANSWER_SECONDS:g} s; ask `scontrol ping`"
        ) from None
    if said.returncode:
        raise UserError(f"Slurm does not answer: {one_line(said.stderr)[:200]}; ask `scontrol ping`")
    return said.stdout


def partitions() -> tuple[dict[str, Partition], str | None]:
    """Return {name: partition} of this cluster, and the name of the default one if there is one."""
    found: dict[str, Partition] = {}
    default = None
    for line in ask("sinfo", "-h", "-o", "%P|%l|%m|%G").splitlines():
        name, limit, memory, gres = line.split("|")
        if name.endswith("*"):
            name = default = name[:-1]
        other = found.get(name, Partition(0.0, 0, frozenset()))  # a line for each kind of node
        found[name] = Partition(
            max(other.minutes, minutes(limit)),
            max(other.memory_mb, int(re.sub(r"\D", "", memory) or 0)),
            other.gpu_types | gpu_types(gres),
        )
    return found, default


def minutes(limit: str) -> float:
    """Return a time limit as Slurm writes it ([days-]hours:minutes:seconds) in minutes."""
    if not limit[:1].isdigit():  # infinite, n/a
        return math.inf
    days, _, clock = limit.rpartition("-")
    parts = [int(p) for p in clock.split(":")]
    seconds = sum(p * 60**i for i, p in enumerate(reversed(parts)))
    return int(days or 0) * 1440 + seconds / 60


def gpu_types(gres: str) -> frozenset[str]:
    """Return the types of GPU in generic resources such as gpu:a100:4(S:0-1),gpu:2."""
    found = set()
    for part in re.split(r",(?![^(]*\))", gres):
        kind, *more = part.partition("(")[0].split(":")
        if kind == "gpu":
            found.add(more[0] if len(more) == 2 else "")
    return frozenset(found)


def check(requests: Iterable[Request], known: dict[str, Partition], default: str | None) -> None:
    """Check that Slurm can ever run what is going to be asked for. It queues some of it for ever otherwise.

    Raises:
        UserError: a partition or type of GPU does not exist, or an attempt asks for more than there is.
    """
    for request in requests:
        name = request.resources.get("slurm_partition") or default
        if name is None:
            raise UserError(f"slurm_partition: not set, and Slurm has no default; there are {_list(known)}")
        problems = []
        for each in str(name).split(","):  # Slurm takes the first that can run it
            if each not in known:
                raise UserError(f"slurm_partition: no partition {each!r}; there are {_list(known)}")
            problems.append(_problem(request, each, known[each]))
        if all(problems):
            raise UserError(str(problems[0]))


def _problem(request: Request, name: str, partition: Partition) -> str | None:
    """Return why a partition can never run an attempt, None if it can."""
    resources, where = request.resources, f"{request.job} (attempt {request.attempt})"
    for key, unit, most in (
        ("runtime", "minutes", partition.minutes),
        ("mem_mb", "MB of memory", partition.memory_mb or math.inf),
    ):
        asked = resources.get(key)
        if isinstance(asked, int | float) and asked > most:
            return (
                f"{where} asks for {asked:g} {unit}, partition {name!r} has {most:g};"
                f" set {key} under `resources` of the profile to {most:g} or less, or take another partition"
            )
    model = resources.get("gpu_model") if resources.get("gpu") else None
    gres = gpu_types(str(resources.get("gres", "")))
    if not (resources.get("gpu") or gres):
        return None
    if not partition.gpu_types:
        return f"{where} asks for a GPU, partition {name!r} has none; set slurm_partition"
    for wanted in {str(model)} if model else gres - {""}:
        if wanted not in partition.gpu_types:
            return (
                f"{where} asks for a GPU of type {wanted!r}, partition {name!r} has"
                f" {_list(partition.gpu_types - {''}) or 'GPUs without a type'}"
            )
    return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def cancel_left(log: Path) -> int:
    """Cancel jobs of the run with Snakemake's log `log` that are still in the queue; return how many.

    One that was being submitted when Snakemake was stopped is known to Slurm only.
    """
    run = _run_id(log)
    if run is None:
        return 0
    left = ask("squeue", "-h", "-r", "--name", run, "-t", "PENDING,RUNNING", "-o", "%i").split()
    if left:
        ask("scancel", "--name", run)
    return len(left)


def newest_log() -> Path | None:
    """Return Snakemake's log of the last run that used Slurm; None, at once, without Slurm's commands."""
    if shutil.which("squeue") is None:
        return None
    return next((log for log in sorted(Path(LOGS).glob("*.log"), reverse=True) if _run_id(log)), None)


def _run_id(log: Path) -> str | None:
    """Return the name of all jobs of a run; the plugin writes it before it submits the first."""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as f:
        if found := re.search(r"SLURM run ID: (\S+)", f.read(HEAD)):
            return found[1]
    return None
