"""What a run recorded: `artifacts.sha256`, and the line that says what became of what stood there before.

`dvc.lock` names a folder by one hash over all its files, `run.json` among them, which tells of the
machine. So a run that makes every artifact again to the same bytes changes `dvc.lock`. The list
of artifacts changes only where bytes do. It is in git, so a clone can tell without the remote.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import write_text
from attnprior.workflow.engines import Job

MANIFEST = Path("artifacts.sha256")  # `sha256sum -c artifacts.sha256` checks the files
LOCK = Path("dvc.lock")
MACHINE = ("run.json", "report.html")  # ends of names: the records, and the page that shows them
SHOWN = 5  # different artifacts named in the message


def stages() -> dict[str, dict]:
    """Return {stage: its entry in dvc.lock}."""
    from attnprior.workflow.params import read_yaml

    return read_yaml(LOCK)["stages"] if LOCK.is_file() else {}


def artifacts() -> dict[str, str]:
    """Return {path: SHA-256} of `artifacts.sha256`.

    Raises:
        UserError: a line is not as `sha256sum` writes it.
    """
    if not MANIFEST.is_file():
        return {}
    lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    found = [line.split("  ", 1) for line in lines]
    if any(len(parts) != 2 for parts in found):
        raise UserError(f"{MANIFEST}: not as sha256sum writes it; restore it with `git checkout {MANIFEST}`")
    return {path: digest for digest, path in found}


def made(jobs: Iterable[Job]) -> dict[str, str]:
    """Return {path: SHA-256} of the artifacts of finished jobs, as their `run.json` says."""
    found: dict[str, str] = {}
    for job in jobs:
        found |= json.loads(Path(job.run_json).read_text(encoding="utf-8"))["outputs"]
    return {path: digest for path, digest in found.items() if not path.endswith(MACHINE)}


def renew(before: dict[str, dict], current: Iterable[Job], outs: Iterable[str]) -> list[str]:
    """Write `artifacts.sha256` for the jobs that are current and return what changed, in a few lines.

    `before` are the stages of dvc.lock as they were; entries outside of `outs`, the files and folders of
    the present stages, are dropped.
    """
    new, old, kept = made(current), artifacts(), set(outs)
    listed = {p: d for p, d in old.items() if not kept.isdisjoint([p, *map(str, Path(p).parents)])} | new
    if listed != old:
        write_text(MANIFEST, "".join(f"{d}  {p}\n" for p, d in sorted(listed.items())))
    after = stages()
    anew = [name for name in after if after[name] != before.get(name)]
    paths = {o["path"] for name in anew for o in after[name].get("outs", [])}
    touched = [
        p for p in new if new[p] != old.get(p) or not paths.isdisjoint([p, *map(str, Path(p).parents)])
    ]
    return lines(len(anew), touched, old, new) if anew or touched else []


def lines(anew: int, touched: list[str], old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return what changed and why: `anew` counts stages of dvc.lock, `touched` are their artifacts."""
    known = [p for p in touched if p in old]
    different = [p for p in known if old[p] != new[p]]
    said = [
        f"dvc.lock: {anew} {'stage' if anew == 1 else 'stages'} recorded anew; artifacts, compared with"
        f" {MANIFEST} as it was: {len(known) - len(different)} identical, {len(different)} different,"
        f" {len(touched) - len(known)} not listed; records of this machine (run.json) always differ"
    ]
    if different:
        more = f", and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        said.append(f"different: {', '.join(different[:SHOWN])}{more}")
    return said
