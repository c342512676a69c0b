"""Checks of the machine: cores, memory, disk, file system, path, and Slurm."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from attnprior.workflow import costs
from attnprior.workflow.finding import Finding, ok, problem, warning
from attnprior.workflow.records import record_of
from attnprior.workflow.scheduler import EXTRAS

MIB, GB = 2**20, 10**9
SHARED = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
    "ceph",
    "gluster",
    "fuse.sshfs",
    "orangefs",
)
PING_SECONDS = 2.0
PLUGIN = "snakemake_executor_plugin_slurm"


def machine(settings: dict, root=".") -> Iterator[Finding]:
    """Compare cores, memory and free disk with what the jobs of the active studies take."""
    jobs = {j.key: j for study in settings["active"] for j in costs.jobs_of(settings, study)}
    threads = settings["compute"]["torch_threads"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < threads:
        yield problem(
            "cores",
            f"{cores} for jobs of {threads} threads, which then refuse to run; lower compute.torch_threads",
        )
    else:
        yield ok("cores", f"{cores}: {cores // threads} jobs at a time (compute.torch_threads: {threads})")
    yield memory(max(j.work.memory for j in jobs.values()), cores // max(threads, 1), total_memory())
    missing = [j for j in jobs.values() if not Path(root, record_of(j.key)).is_file()]
    need = sum(s.files * 2 + s.records for s in costs.stages_of(missing, set(), {})[-1:]) if missing else 0
    yield disk(need, shutil.disk_usage(root).free)


def memory(largest: float, at_a_time: int, present: int | None) -> Finding:
    """Compare memory in bytes with the largest job, and with as many as run at a time."""
    about = f"{largest / MIB:,.0f} MiB for the largest job, {max(at_a_time, 1)} at a time"
    if present is None:
        return ok("memory", f"{about} (how much there is cannot be told here)")
    about += f", of {present / MIB:,.0f} MiB"
    if present < largest:
        return problem("memory", f"{about}: too little; lower batch_size or use a larger machine")
    if present < largest * at_a_time:
        few = max(1, int(present // largest))
        return warning("memory", f"{about}: too little for all; attnprior run -- --cores {few}")
    return ok("memory", about)


def total_memory(meminfo="/proc/meminfo", limit="/sys/fs/cgroup/memory.max") -> int | None:
    """Return the memory in bytes that processes here can use, None where the system does not tell."""
    found = []
    try:
        for line in Path(meminfo).read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # no limit
        found.append(int(Path(limit).read_text(encoding="ascii")))
    return min(found, default=None)


def disk(need: float, free: int) -> Finding:
    """Compare free bytes with what the jobs that are not made yet will write."""
    about = f"{free / GB:,.1f} GB free, about {need / GB:,.2f} GB still to be written"
    if free < need:
        return problem("disk", f"{about}; free space, or move the checkout or DVC's cache (dvc cache dir)")
    if free < 2 * need or free < GB:
        return warning("disk", f"{about}; that is close")
    return ok("disk", about)


def path(root=".") -> Iterator[Finding]:
    """Look for what programs trip over in the path of the checkout."""
    name = str(Path(root).resolve())
    if not name.isascii() or any(c.isspace() for c in name):
        yield warning(
            "path", f"{name!r} has blanks or letters beyond ASCII, which some programs cannot take; move it"
        )
    else:
        yield ok("path", name)


def file_system(root=".", mounts="/proc/mounts") -> Iterator[Finding]:
    """Say when the checkout lies on a network file system, where locks and SQLite are not to be trusted."""
    kind = _kind(Path(root).resolve(), mounts)
    if kind is None:
        yield ok("file system", "cannot be told here")
    elif kind.startswith(SHARED):
        yield warning(
            "file system",
            f"{kind} over the network: SQLite and locks may fail; set MLFLOW_TRACKING_URI to a server or to"
            " a file on a local disk, and run on one machine at a time",
        )
    else:
        yield ok("file system", kind)


def _kind(place: Path, mounts) -> str | None:
    """Return the type of the file system that holds `place`: the deepest, of equals the last, mount."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        folder = Path(point.replace("\\040", " "))
        if (place == folder or folder in place.parents) and (best is None or len(folder.parts) >= best[0]):
            best = (len(folder.parts), kind)
    return best[1] if best else None


def slurm() -> Iterator[Finding]:
    """Ask Slurm's controller; with the executor plugin and none that answers, every Snakemake start waits."""
    plugin = util.find_spec(PLUGIN) is not None
    if shutil.which("scontrol") is None:
        yield ok("slurm", "not installed" + ("; Snakemake's plugin for it is" if plugin else ""))
        return
    try:
        said = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=PING_SECONDS, check=False
        )
        up, text = said.returncode == 0 and " UP" in said.stdout, (said.stdout + said.stderr).strip()
    except subprocess.TimeoutExpired:
        up, text = False, f"no answer within {PING_SECONDS:g} s"
    except OSError as e:
        up, text = False, str(e)
    if up:
        hint = "" if plugin else f"; to use it: pip install {EXTRAS['slurm']}"
        yield ok("slurm", f"its controller answers{hint}")
    elif plugin:
        yield warning(
            "slurm",
            f"the client is installed but no controller answers ({' '.join(text.split())[:80]}): the executor"
            " plugin then delays every Snakemake start by 10 s; start the controller, or"
            " pip uninstall snakemake-executor-plugin-slurm",
        )
    else:
        yield ok("slurm", "the client is installed, no controller answers; nothing here asks for it")
