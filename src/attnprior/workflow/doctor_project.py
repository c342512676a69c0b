"""Checks of the checkout: git, DVC, the profile's link, time stamps, checkpoints, finished jobs."""

import configparser
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attnprior.errors import one_line
from attnprior.workflow import costs
from attnprior.workflow.finding import Finding, ok, problem, warning
from attnprior.workflow.records import judged

LINK = "workflow/profiles"
AHEAD = 60.0  # seconds that a file may be newer than now


def git(root=".") -> Iterator[Finding]:
    """Say whether the checkout is a repository, and clean."""
    try:
        said = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as e:
        yield problem("git", f"cannot be started ({e.strerror}); install git")
        return
    if said.returncode:
        yield problem("git", f"{one_line(said.stderr)[:160]}; clone the repository, or git init")
    elif changed := said.stdout.splitlines():
        files = ", ".join(line[3:] for line in changed[:3]) + (", …" if len(changed) > 3 else "")
        yield warning(
            "git", f"changed since the last commit: {files}; records will say `-dirty`, so commit first"
        )
    else:
        yield ok("git", "a repository without changes")


def dvc(root=".") -> Iterator[Finding]:
    """Say whether DVC is set up, keeps quiet, and can write to its remotes that are folders."""
    folder = Path(root, ".dvc")
    if not (folder / "config").is_file():
        yield problem("dvc", "not set up here (.dvc/config is missing); dvc init, or restore it from git")
        return
    config = configparser.ConfigParser(interpolation=None, strict=False)
    config.read([folder / "config", folder / "config.local"], encoding="utf-8")
    yield ok("dvc", "set up")
    if config.get("core", "analytics", fallback="true").strip().lower() in ("false", "no", "off", "0"):
        yield ok("telemetry", "off for DVC (.dvc/config) and for what attnprior starts")
    else:
        yield warning(
            "telemetry", "your own dvc commands report to its makers; dvc config core.analytics false"
        )
    remotes = {
        s.strip("'\"")[6:].strip().strip("\"'"): config[s].get("url", "")
        for s in config.sections()
        if s.strip("'\"").startswith("remote ")
    }
    if not remotes:
        yield ok("remote", "none; to share results: dvc remote add -d NAME FOLDER")
    for name, url in remotes.items():
        yield remote(name, url, folder)


def remote(name: str, url: str, folder: Path) -> Finding:
    """Look at a DVC remote; a relative folder counts from `.dvc`."""
    if "://" in url:
        return ok("remote", f"{name}: {url} (not tried: only folders are)")
    place = Path(folder, url).resolve()
    if place.is_dir():
        if os.access(place, os.W_OK | os.X_OK):
            return ok("remote", f"{name}: {place}")
        return problem("remote", f"{name}: {place} cannot be written; dvc push will fail")
    if place.exists():
        return problem("remote", f"{name}: {place} is no folder; dvc remote modify {name} url FOLDER")
    return warning("remote", f"{name}: {place} is not there: mount it, or dvc push makes it")


def profiles(root=".") -> Iterator[Finding]:
    """Look for the link by which Snakemake finds its default profile."""
    link = Path(root, "profiles")
    if (link / "default" / "config.yaml").is_file():
        yield ok("profiles", f"Snakemake finds {LINK}/default")
    else:
        what = "is a plain file" if link.is_file() else "leads nowhere" if link.is_symlink() else "is missing"
        yield problem(
            "profiles",
            f"the link `profiles` {what}, so bare snakemake has no profile; ln -sfn {LINK} profiles",
        )


def clock(root=".", now: float | None = None) -> Iterator[Finding]:
    """Look for files that are newer than now, which Snakemake would take for changed inputs for ever."""
    limit = (time.time() if now is None else now) + AHEAD
    late = []
    for name in ("src", "workflow", "data", "teachers", "fits", "runs", "results"):
        for folder, _, files in os.walk(Path(root, name)):
            late += [p for f in files if os.lstat(p := os.path.join(folder, f)).st_mtime > limit]
    if late:
        yield warning(
            "clock",
            f"{len(late)} files are newer than now, such as {late[0]}: set the clock, then touch them",
        )
    else:
        yield ok("clock", "no file is newer than now")


def checkpoints(root=".") -> Iterator[Finding]:
    """Count what killed trainings left to resume from."""
    found = sorted(Path(root, "checkpoints").glob("**/state.pt"))
    if not found:
        yield ok("checkpoints", "none left")
        return
    size = sum(p.stat().st_size for p in found) / 1e6
    yield warning(
        "checkpoints",
        f"{len(found)} ({size:,.1f} MB), such as {found[0].parent}: of jobs that run, or that were stopped;"
        " attnprior run resumes them",
    )


def jobs(settings: dict, root=".") -> Iterator[Finding]:
    """Count the jobs of the active studies by their records, and what Snakemake calls incomplete."""
    keys = {j.key: None for study in settings["active"] for j in costs.jobs_of(settings, study)}
    hashes: dict[str, str | None] = {}
    counts = Counter(judged(settings, key, hashes, root) for key in keys)
    about = f"{counts['current']} of {len(keys)} finished"
    about += f", {counts['missing']} not made yet" if counts["missing"] else ""
    if counts["stale"]:
        yield warning(
            "jobs",
            f"{about}, {counts['stale']} of other settings or code; attnprior run -n says which and why",
        )
    else:
        yield ok("jobs", about + ("; attnprior run makes them" if counts["missing"] else ""))
    marks = [p for p in Path(root, ".snakemake/incomplete").glob("**/*") if p.is_file()]
    if marks:
        yield warning(
            "jobs", f"{len(marks)} files marked incomplete by Snakemake; attnprior run makes them again"
        )
