"""Checks of locks: of `attnprior run`, Snakemake and DVC, with the processes that hold them."""

import json
from collections.abc import Iterator
from pathlib import Path

from attnprior.workflow.finding import Finding, ok, problem, warning
from attnprior.workflow.processes import alive, holders, running


def locks(root=".") -> Iterator[Finding]:
    """Say which locks are held by a process that runs, and which were left behind."""
    found = [*run_lock(root), *dvc_locks(root)]
    yield from found or [ok("locks", "none is held")]


def run_lock(root=".") -> Iterator[Finding]:
    """Look at the lock of `attnprior run` and at Snakemake's, which a killed run leaves."""
    lock = Path(root, ".snakemake/attnprior.lock")
    holder, held = _json(lock), holders(lock)
    pid = holder.get("pid")
    if held:
        yield warning("locks", f"attnprior run works here (process {held[0]}); wait for it before another")
    files = sorted(Path(root, ".snakemake/locks").glob("*.lock"))
    if held or not files:
        return
    if holder.get("running"):
        state = "alive" if isinstance(pid, int) and alive(pid) else "ended"
        yield warning(
            "locks",
            f"Snakemake's, of a killed attnprior run (process {pid}, {state}); attnprior run removes it",
        )
    elif pids := running("snakemake", root):
        yield warning("locks", f"Snakemake works here (process {pids[0]}); wait for it")
    else:
        yield problem("locks", f"{files[0]}: left by a Snakemake that no longer runs; snakemake --unlock")


def dvc_locks(root=".") -> Iterator[Finding]:
    """Look at DVC's lock of the repository, and at its list of files in use."""
    for name in ("lock", "rwlock.lock"):
        if pids := holders(Path(root, ".dvc/tmp", name)):
            yield warning("locks", f"a dvc command works here (process {pids[0]}); wait for it")
            return
    path = Path(root, ".dvc/tmp/rwlock")
    if not path.is_file():
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users = [u for u in content.get("write", {}).values() if u]
        users += [u for several in content.get("read", {}).values() for u in several]
        pids = sorted({int(u["pid"]) for u in users})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        yield problem("locks", f"{path} cannot be read, so every dvc command fails; delete it")
        return
    if living := [p for p in pids if alive(p)]:
        yield warning(
            "locks",
            f"{path} names process {living[0]}, which runs: wait for it; if it is no dvc, delete {path}",
        )
    elif pids:
        yield ok("locks", f"{path} names process {pids[0]}, which has ended; DVC removes that itself")


def _json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
