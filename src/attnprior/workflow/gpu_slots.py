"""A GPU of its own for each job on a machine with several, for as long as the job lives.

`python -m attnprior.workflow.gpu_slots GPUS EACH STAGES -- COMMAND...` takes one of EACH slots of one of GPUS
(such as 0,1,2,3), sets CUDA_VISIBLE_DEVICES and becomes COMMAND; that of a stage not in STAGES goes without.
A training that several processes share takes as many GPUs, all or none at a time.
A slot is a locked file; the lock goes with the process, so a job that dies gives it back. The files lie in
one folder for all checkouts of a user. Snakemake puts this before the commands of all jobs by `shell.prefix`,
and not by the rules: what it records of a job is the same with and without GPUs, on a cluster and here.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnprior import ranks
from attnprior.errors import UserError, tell

POLL = 0.2  # seconds between looks for a free slot
WAIT_NOTICE = 30.0  # seconds after which a waiting job says so
STRICT = "set -euo pipefail; "  # what Snakemake puts before commands of its own accord
STAGE = "attnprior.stages."  # module of the stage that a command runs
FOLDER = "ATTNPRIOR_GPU_SLOTS"  # environment: the folder of the locked files


def folder() -> Path:
    """Return where the locked files of this user lie."""
    return Path(os.environ.get(FOLDER) or Path(tempfile.gettempdir(), f"attnprior-gpus-{os.getuid()}"))


def visible(environ=os.environ) -> list[str]:
    """Return the GPUs for this process: those of CUDA_VISIBLE_DEVICES, else what nvidia-smi lists."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [d.strip() for d in environ["CUDA_VISIBLE_DEVICES"].split(",") if d.strip()]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return said.stdout.split()
    return []


def each(jobs: int, gpus: int) -> int:
    """Return how many slots a GPU has if `jobs` run at a time on `gpus`."""
    return -(-jobs // gpus)


def prefix(workflow, device: str) -> str | None:
    """Return what to put before the commands of jobs: this module if GPU jobs run here, else None.

    That is with `--resources gpu=N` (N jobs at a time) and without `--jobs` of a batch system, which
    hands out GPUs itself. A job of such a system, or a part of a run that has its slots, adds nothing.

    Raises:
        WorkflowError: there are no GPUs, or no job may use one.
    """
    limit = getattr(workflow.global_resources.get("gpu"), "value", None)  # None: named by rules only
    here = workflow.is_main_process and workflow.global_resources["_nodes"].value is None
    if device != "cuda" or limit is None or not here:
        return None
    from snakemake.exceptions import WorkflowError

    if limit < 1:
        raise WorkflowError(
            f"--resources gpu={limit}: no job would ever get a GPU; give the number of jobs at a time, 1 or"
            " more, or set compute.device: cpu in params.yaml"
        )
    gpus = visible()
    if not gpus:
        raise WorkflowError(
            "--resources gpu: no GPU is visible (CUDA_VISIBLE_DEVICES, nvidia-smi);"
            " set compute.device: cpu in params.yaml, or run on a machine with a GPU"
        )
    stages = [r.name for r in workflow.rules if "gpu" in r.resources and r.resources["gpu"].raw != 0]
    return STRICT + command(gpus, each(limit, len(gpus)), stages)


def command(gpus: Sequence[str], slots: int, stages: Sequence[str]) -> str:
    """Return the beginning of a command line; the rest, one of `stages`, runs on one of `gpus`."""
    return f"python -m attnprior.workflow.gpu_slots {','.join(gpus)} {slots} {','.join(stages)} -- "


def take(gpus: Sequence[str], slots: int, where: Path, count: int = 1) -> list[str]:
    """Return `count` GPUs of each of which this process holds a slot from now on, those with most free slots.

    Waits while there are fewer. The locks stay with this process over `exec`, until it ends.

    Raises:
        UserError: the folder of the locks cannot be written, or there are not so many GPUs.
    """
    if count > len(gpus):
        raise UserError(
            f"the recipe has processes {count}, and there are {len(gpus)} GPUs ({', '.join(gpus)}); lower it"
        )
    begun, said = time.monotonic(), False
    while True:
        with _taking(where):
            found = _free(gpus, slots, where, count)
        if len(found) == count:
            return list(found)
        for fd in found.values():
            os.close(fd)
        if not said and time.monotonic() - begun > WAIT_NOTICE:
            number = "one" if count == 1 else f"{count}"
            tell(f"waiting for {number} of the GPUs {', '.join(gpus)}; locks are in {where}")
            said = True
        time.sleep(POLL)


@contextlib.contextmanager
def _taking(where: Path) -> Iterator[None]:
    """Be the only one that takes slots, so that two jobs do not wait for what the other has taken."""
    fd = _open(where / "taking")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _free(gpus: Sequence[str], slots: int, where: Path, count: int) -> dict[str, int]:
    """Return {GPU: file descriptor of a slot locked now}, at most `count`."""
    found: dict[str, int] = {}
    for slot in range(slots):  # the first slot of every GPU before the second of any
        for gpu in gpus:
            if gpu in found or len(found) == count:
                continue
            fd = _locked(where / f"{gpu.replace('/', '_')}.{slot}")
            if fd is not None:
                found[gpu] = fd
    return found


def _locked(path: Path) -> int | None:
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.set_inheritable(fd, True)
    return fd


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as e:
        raise UserError(f"{path}: cannot be written ({e.strerror}); {FOLDER} names another folder") from e


def wanted_by(job: Sequence[str]) -> int:
    """Return how many GPUs the command of a stage asks for: one for each process of its training."""
    if "--params" not in job:
        return 1
    return ranks.wanted(json.loads(job[job.index("--params") + 1]))


def main(argv: Sequence[str]) -> None:
    """Take a slot if the stage after `--` is to have one, and become its command."""
    cut = list(argv).index("--")
    (gpus, slots, stages), job = argv[:cut], list(argv[cut + 1 :])
    if any(f"{STAGE}{name}" in job for name in stages.split(",")):
        try:
            taken = take(gpus.split(","), int(slots), folder(), wanted_by(job))
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
        except UserError as e:
            raise SystemExit(f"error: {e}") from e
    os.execvp(job[0], job)


if __name__ == "__main__":
    main(sys.argv[1:])
