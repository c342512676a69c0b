"""What the jobs of a project really read, from the notes that `tracing/sitecustomize.py` takes."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnprior.workflow import scaled
from tests.workflow import mutations
from tests.workflow.project import ROOT, Project

# What the numbers of a scale set in the entries that are derived with it.
SHRINKS = {
    "images": ("train", "val", "test", "labels", "images"),
    "epochs": ("epochs", "warmup_epochs"),
    "seeds": ("seeds",),
    "steps": ("steps",),
}


@dataclass
class Read:
    """What one job declares and what it read: source files, other files, leaf keys of the settings."""

    job: str
    declared: set[str]
    read: set[str]

    @property
    def undeclared(self) -> set[str]:
        return self.read - self.declared

    @property
    def excess(self) -> set[str]:
        return self.declared - self.read

    @property
    def kind(self) -> str:
        """The job without its seed and data set."""
        rule, *names = self.job.split("/")
        return "/".join([rule, *(n for n in names if not n.startswith("seed") and n != "digits")])


def tracing(folder: Path) -> dict[str, str]:
    """Return the environment in which stages note what they read."""
    folder.mkdir(parents=True)
    return {"ATTNPRIOR_TRACED": str(folder), "PYTHONPATH": str(ROOT / "tests/workflow/tracing")}


def reads(project: Project, folder: Path) -> list[Read]:
    """Return what every traced job declared (by its `run.json`) and read; keys are marked `params:`."""
    found = []
    for path in folder.glob("*.json"):
        noted = json.loads(path.read_text())
        arguments = dict(_flags(noted["command"]))
        run = project.record(arguments["run-json"])
        settings = json.loads(run["params"])
        keys = {f"params:{k}" for name, part in settings.items() for k in mutations.leaves(part, name)}
        keys |= {f"params:{name}.{k}" for name in _scaled(settings) for k in ("of", "scale")}
        mine = {*run["outputs"], arguments["events"], arguments.get("checkpoint", "")}
        read = {f for f in noted["files"] if not any(f == m or f.startswith(f"{m}/") for m in mine if m)}
        # A job has no other settings than these (params.yaml would be among the files).
        looked = {f"params:{k}" for k in behind(noted["keys"], settings)} & keys
        found.append(Read(run["job"], {*run["inputs"], *keys}, {*noted["code"], *read, *looked}))
    return found


def behind(looked: Iterable[str], settings: dict) -> set[str]:
    """Return the leaf keys looked at, and those that they follow from where an entry is derived."""
    found = set(looked)
    scales = [k for k in settings if k.startswith("scales.")]
    origins = {k: k.rpartition(scaled.MARK)[0] for k in settings if scaled.MARK in k}
    studies = _scaled(settings)
    origins |= {k: f"studies.{settings[k]['scaled']['of']}" for k in studies}
    for key in looked:
        entry, last = ".".join(key.split(".")[:2]), key.rpartition(".")[2]
        if entry in studies:  # which stands in its file as {of: ..., scale: ...}
            found |= {f"{entry}.of", f"{entry}.scale"}
            found |= {k for k in settings if k.startswith("recipes.") and last == "epochs"}
        if entry in origins:
            found.add(key.replace(entry, origins[entry], 1).replace(f"{scaled.MARK}{scales[0][7:]}", ""))
            found |= {f"{s}.{n}" for s in scales for n, shrunk in SHRINKS.items() if last in shrunk}
    return found


def _scaled(settings: dict) -> list[str]:
    """Return the dotted keys of scaled studies among the settings of a job."""
    return [k for k, v in settings.items() if isinstance(v, dict) and "scaled" in v]


def _flags(command: list[str]) -> Iterable[tuple[str, str]]:
    for flag, value in itertools.pairwise(command):
        if flag.startswith("--"):
            yield flag[2:], value


def excess_lines(found: list[Read]) -> list[str]:
    """Return a line for everything that jobs of one kind declare and none of them read."""
    kinds: dict[str, list[Read]] = {}
    for read in found:
        kinds.setdefault(read.kind, []).append(read)
    lines = []
    for kind, group in sorted(kinds.items()):
        unread = set.intersection(*(r.excess for r in group))
        lines += [f"{kind} declares, but does not read, {name}" for name in sorted(unread)]
    return lines
