"""What every single change would rerun, as Snakemake, DVC and `attnprior run` see it.

    python -m tests.workflow.matrix [--keys N] [--modules N] [--also KEY …] [--part I N]

In a finished project: changes one leaf key of `params.yaml` or one module at a time (many at once where no
job gets them, see together.py), asks all three in this one process, and puts everything back. Prints one JSON
line for each change.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attnprior.workflow import check, params, sync
from attnprior.workflow.engines import Stages, snakemake_graph
from attnprior.workflow.state import Hashes
from tests.workflow import mutations, probe, together

GENERATED = ("params.yaml", sync.ARMS, sync.DVC)
KNOWN: dict[tuple[str, ...], tuple[dict[str, list[str]], dict[str, list[str]]]] = {}


@dataclass
class Verdict:
    """What is to be made again after a change; jobs and DVC stages by name."""

    written: set[str] = field(default_factory=set)  # generated files that followed the change
    own: set[str] = field(default_factory=set)  # Snakemake: jobs with a cause of their own
    planned: set[str] = field(default_factory=set)  # Snakemake: all that it would run
    stale: set[str] = field(default_factory=set)  # attnprior: jobs whose files are not current
    run: set[str] = field(default_factory=set)  # attnprior: all that it would run
    own_stages: set[str] = field(default_factory=set)  # the stages of `own`
    planned_stages: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)  # DVC: stages that are not as recorded
    downstream: set[str] = field(default_factory=set)  # DVC: these and all that depend on them
    stages: dict[str, str] = field(default_factory=dict)  # the stage of each job
    command: set[str] = field(default_factory=set)  # DVC: stages of which only the command differs
    tabled: set[str] = field(default_factory=set)  # inputs of the jobs that make tables, figures and pages

    @property
    def nothing(self) -> bool:
        """Whether all three leave everything as it is."""
        return not (self.written | self.planned | self.stale | self.run | self.changed | self.downstream)


def judge(stages: Stages, hashes: Hashes) -> Verdict:
    """Return what the three say about the working directory."""
    settings = params.load()
    written = sync.write_generated(settings)
    changed = stages.changed()
    outs, deps = structure(stages)
    with kept_environment(), snakemake_graph() as graph:
        planned = probe.planned(graph)
        causes = probe.own_causes(graph)
        found = sync.reconcile(graph, hashes, write=False)
        stage_of = {j.key: n for n, jobs in check.jobs_of(outs, graph.jobs).items() for j in jobs}
    return Verdict(
        written=set(written),
        stages=stage_of,
        own=set(causes),
        planned=planned,
        stale=set(found.stale),
        run={j.key for j in found.planned},
        own_stages={stage_of[k] for k in causes},
        planned_stages={stage_of[k] for k in planned},
        changed=set(changed),
        downstream=below(set(changed), outs, deps),
        command={n for n, what in changed.items() if what == ["changed command"]},
        tabled={
            f
            for j in graph.jobs
            if "study" in j.wildcards
            for f in j.inputs
            if f.startswith(("runs/", "fits/"))
        },
    )


def structure(stages: Stages) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the outs and deps of every DVC stage, read again only after their files changed."""
    key = tuple(Path(n).read_text() for n in (sync.ARMS, sync.DVC))
    if key not in KNOWN:
        KNOWN[key] = stages.outs(), stages.deps()
    return KNOWN[key]


def below(stages: set[str], outs: dict[str, list[str]], deps: dict[str, list[str]]) -> set[str]:
    """Return the stages given and all that depend on them."""
    found = set(stages)
    while True:
        made = {o for n in found for o in outs.get(n, [])}
        new = {
            n
            for n in deps
            if n not in found and any(d == m or d.startswith(f"{m}/") for d in deps[n] for m in made)
        }
        if not new:
            return found
        found |= new


@contextlib.contextmanager
def kept_environment() -> Iterator[None]:
    """Undo what a Snakefile sets in its process."""
    environment, path = dict(os.environ), list(sys.path)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path


@contextlib.contextmanager
def put_back(*names: str) -> Iterator[None]:
    """Restore content and time stamps of files that the block changes."""
    before = {n: (Path(n).read_bytes(), os.stat(n)) for n in names}
    try:
        yield
    finally:
        for name, (content, stat) in before.items():
            if os.stat(name).st_mtime_ns != stat.st_mtime_ns:
                Path(name).write_bytes(content)
                os.utime(name, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def changes(keys: int | None, modules: int | None, seed: int, also: list[str]) -> list[tuple[str, str]]:
    """Return (kind, name) of what to change: all of it, or a sample and the keys `also`."""
    draw = random.Random(seed)
    wanted = sorted(mutations.leaves(mutations.read()))
    sources = sorted(str(p) for p in Path("src/attnprior").rglob("*.py"))
    wanted = wanted if keys is None else [*draw.sample(wanted, keys), *also]
    sources = sources if modules is None else draw.sample(sources, modules)
    every = keys is None and modules is None
    return [
        *(("key", k) for k in wanted),
        *(("module", m) for m in sources),
        *(("dropped", d) for d in mutations.DROPS if every),
        *(("text", t) for t in mutations.TEXTS if every or t == "key order"),
    ]


def changed_files(kind: str, name: str, settings: dict, schema: dict) -> dict[str, str] | None:
    """Return {path: new text} of a change, or None if the key can take no other value."""
    if kind == "module":
        return commented([name])
    if kind == "text":
        return {"params.yaml": mutations.TEXTS[name](Path("params.yaml").read_text())}
    values = (
        mutations.DROPS[name](settings) if kind == "dropped" else mutations.mutated(settings, schema, name)
    )
    return values and mutations.texts(values)


def commented(modules: list[str]) -> dict[str, str]:
    """Return {path: new text} of modules that get a comment."""
    return {m: Path(m).read_text() + "\n# changed\n" for m in modules}


def judge_idle(idle: list[tuple[str, str]], settings: dict, schema: dict, judged) -> list[tuple[str, str]]:
    """Print the verdict on changes that no job may see, and return those that have to be judged alone."""
    alone = []
    keys = [name for kind, name in idle if kind == "key"]
    modules = [name for kind, name in idle if kind == "module"]
    groups = [
        ("key", names, v and mutations.texts(v)) for names, v in together.settings(settings, schema, keys)
    ]
    groups += [("module", modules, commented(modules))] if modules else []
    for kind, names, files in groups:
        verdict = judged(files) if files else None
        if verdict and verdict.nothing:
            for name in names:
                say(kind, name, verdict, group=names[0])
        else:
            alone += [(kind, name) for name in names]
    return alone


def main() -> None:
    """Print the verdict on every change."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int)
    parser.add_argument("--modules", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--also", nargs="*", default=[], help="keys to change besides the sample")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="every Nth change from the Ith on")
    args = parser.parse_args()
    settings, schema = mutations.read(), params.read_yaml(params.SCHEMA)
    hashes = Hashes()
    first, step = args.part
    with probe.quicker_dvc(), probe.settings_read_once(), Stages() as stages:

        def judged(files: dict[str, str]) -> Verdict:
            with put_back(*files, *GENERATED):
                for path, text in files.items():
                    Path(path).write_text(text)
                return judge(stages, hashes)

        with kept_environment(), snakemake_graph() as graph:
            used = together.used(graph)
        say("nothing", "before", judge(stages, hashes))
        gc.freeze()  # both engines leave cycles of large objects; looking for them takes a third of the time
        gc.disable()
        every = changes(args.keys, args.modules, args.seed, args.also)[first::step]
        idle = [c for c in every if together.is_idle(*c, used)]
        alone = [c for c in every if c not in idle] + judge_idle(idle, settings, schema, judged)
        for n, (kind, name) in enumerate(alone):
            if n % 20 == 19:
                gc.collect()
            files = changed_files(kind, name, settings, schema)
            say(kind, name, judged(files)) if files else say("fixed", name, None)
        for folder in ("src", "data", "teachers", "fits", "runs", "results"):
            for path in Path(folder).rglob("*"):
                path.touch()
        say("text", "every file touched", judge(stages, hashes))


def say(kind: str, name: str, verdict: Verdict | None, **more: str) -> None:
    """Print a line."""
    found = {k: sorted(v) if isinstance(v, set) else v for k, v in vars(verdict).items()} if verdict else {}
    print(json.dumps({"kind": kind, "name": name, **more, **found}), flush=True)


if __name__ == "__main__":
    main()
