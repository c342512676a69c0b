"""`attnprior run`: recover what is finished, correct the records, run the rest, record as it finishes."""

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from attnprior.errors import UserError
from attnprior.workflow import (
    cache,
    check,
    environment,
    failures,
    graph,
    orphans,
    params,
    repair,
    stop,
    sync,
)
from attnprior.workflow.engines import Graph, Job, Stages, snakemake_graph
from attnprior.workflow.lock import RunLock, run_lock
from attnprior.workflow.state import Hashes, stale_because

POLL = 1.0  # seconds between looks at the running jobs
RECORD_EVERY = 60.0  # seconds between records in dvc.lock


def run(studies: list[str], snakemake_args: list[str], *, dry: bool = False) -> int:
    """Make the named studies (the active ones by default) and return the exit status.

    Raises:
        UserError: settings are wrong, the checkout is locked, or an engine refuses.
    """
    begun = time.time()
    settings = params.load()
    if studies == ["all"]:
        studies = list(settings["studies"])
    for study in studies:
        params.check_study(settings, study)
    dry = dry or bool({"-n", "--dry-run", "--dryrun"} & set(snakemake_args))
    new = [s for s in studies if s not in settings["active"]]
    if new:  # judged before params.yaml changes
        settings = {**settings, "active": [*settings["active"], *new]}
        params.check_teacher_seeds(settings)
    if dry:
        return _dry_run(settings, studies, new)
    with run_lock() as lock:
        if new:
            activate(new)
            settings = params.load()
        for path in sync.write_generated(settings):
            print(f"attnprior: {path} written")
        return _run(settings, studies or settings["active"], snakemake_args, lock, begun)


def _dry_run(settings: dict, studies: list[str], new: list[str]) -> int:
    for name in new:
        print(
            f"study {name!r} is not active yet: `attnprior run {name}` adds it to `active` in {params.PARAMS}"
        )
    with snakemake_graph(graph.targets(settings, studies or None)) as jobs:
        found = sync.reconcile(jobs, Hashes(), write=False)
    for job in found.planned:
        print(f"{job.key}: {found.stale.get(job.key, 'follows from jobs above')}")
    print(f"{len(found.planned)} of {len(jobs.jobs)} jobs to run")
    return 0


def activate(names: list[str]) -> None:
    """Add studies to `active` in `params.yaml`, keeping its comments and layout."""
    from ruamel.yaml import YAML

    from attnprior.files import atomic

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1000
    document = yaml.load(Path(params.PARAMS))
    document["active"] += [n for n in names if n not in document["active"]]
    with atomic(params.PARAMS) as temporary, open(temporary, "w", encoding="utf-8") as f:
        yaml.dump(document, f)
    print(f"attnprior: added {', '.join(names)} to `active` in {params.PARAMS}")


def _run(settings: dict, studies: list[str], snakemake_args: list[str], lock: RunLock, begun: float) -> int:
    hashes = Hashes()
    orphans.wait()
    for path in repair.remove_damaged_checkpoints():
        print(f"attnprior: {path} was damaged and is deleted; its training starts afresh", file=sys.stderr)
    with snakemake_graph(graph.targets(settings, studies)) as jobs:
        found = sync.reconcile(jobs, hashes)
    if found.adopted:
        print(f"attnprior: {len(found.adopted)} finished jobs taken over as they are")
    with Stages() as stages:
        recorder = Recorder(stages, jobs, hashes, found)
        recorder.settle()
        status, progress = 0, Progress(found.planned)
        if found.planned:
            print(f"attnprior: {len(found.planned)} of {len(jobs.jobs)} jobs to run")
            sys.stdout.flush()
            with tracker():
                status = _snakemake(studies, settings, snakemake_args, lock, progress, recorder)
            recorder.settle()
        elif _untracked():
            with tracker():
                pass
    if status == 0 and not found.planned:
        print(f"attnprior: nothing to do, all {len(jobs.jobs)} jobs are current")
    _summary(studies, progress, time.time() - begun, status)
    return status


def _snakemake(studies, settings, args, lock: RunLock, progress: "Progress", recorder: "Recorder") -> int:
    """Run Snakemake to the end, showing and recording jobs as they finish."""
    wanted = [] if set(studies) == set(settings["active"]) else graph.targets(settings, studies)
    invocation = uuid.uuid4().hex
    log = Path(f"logs/snakemake/{time.strftime('%Y%m%d-%H%M%S')}-{invocation[:8]}.log")
    env = {**os.environ, **environment.job_environment("."), "ATTNPRIOR_INVOCATION": invocation}
    command = [sys.executable, "-m", "attnprior.workflow.engines", *args]
    command += ["--", *wanted] if wanted else []
    progress.invocation = invocation
    lock.note(running=True)
    with stop.stoppable() as stopper:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "w", encoding="utf-8") as out:
                stopper.child = child = subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT, env=env, pass_fds=(lock.fd,)
                )
        except OSError as e:
            raise UserError(f"{log}: {e.strerror}; free space or make it writable") from e
        lock.note(running=True, snakemake=child.pid)
        last = time.time()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
            done = child.returncode is not None
            recorder.finished(progress.update())
            if done:
                break
            stopper.enforce()
            if time.time() - last > RECORD_EVERY:
                with contextlib.suppress(UserError):  # another DVC command works: `settle` tries again
                    recorder.record()
                last = time.time()
    lock.note(running=bool(repair.lock_files()))
    if stopper.number:
        failures.explain_stop(len(progress.unfinished()), len(progress.planned))
        return 128 + stopper.number
    if child.returncode:
        failures.explain(progress.unfinished(), progress.invocation, log, child.returncode)
    return 1 if child.returncode else 0


@dataclass
class Progress:
    """The jobs of one run: which have finished, and what their time went into."""

    planned: list[Job]
    invocation: str = ""
    done: dict[str, dict] = field(default_factory=dict)  # job key -> run.json

    def update(self) -> list[Job]:
        """Print and return the jobs that finished since the last call."""
        new = []
        for job in self.planned:
            if job.key in self.done:
                continue
            record = _read_record(job.run_json)
            if record.get("invocation") == self.invocation:
                self.done[job.key] = record
                new.append(job)
                seconds = record["seconds"]["total"]
                total = len(self.planned)
                print(f"[{len(self.done):{len(str(total))}}/{total}] {job.key}  {seconds:.1f} s")
        sys.stdout.flush()
        return new

    def unfinished(self) -> list[Job]:
        return [j for j in self.planned if j.key not in self.done]


def _read_record(path: str) -> dict:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


class Recorder:
    """Writes to dvc.lock the stages whose jobs are all current, and nothing else."""

    def __init__(self, stages: Stages, jobs: Graph, hashes: Hashes, found: sync.Reconciled) -> None:
        self._stages, self._hashes = stages, hashes
        self._jobs = check.jobs_of(stages.outs(), jobs.jobs)
        self._stale = {j.key for j in found.planned}
        self._changed = cache.remove_damaged_copies() | set(stages.changed()) | cache.wrong_sizes()
        self._changed |= {n for n, group in self._jobs.items() if any(j.key in self._stale for j in group)}

    def finished(self, jobs: Iterable[Job]) -> None:
        """Note jobs that finished: they count as current if their content says so."""
        for job in jobs:
            if stale_because(job, self._hashes) is None:
                self._stale.discard(job.key)

    def settle(self) -> None:
        """Record until nothing is left to record: a stage's new record can change the stages after it."""
        while self.record():
            self._changed = set(self._stages.changed())

    def record(self) -> bool:
        """Commit every changed stage all of whose jobs are current; return whether there was one."""
        ready = [
            name
            for name in self._changed
            if self._jobs.get(name) and not any(j.key in self._stale for j in self._jobs[name])
        ]
        if ready:
            self._stages.commit(sorted(ready))
            self._changed -= set(ready)
        return bool(ready)


@contextlib.contextmanager
def tracker():
    """Feed MLflow from the event logs while the block runs, in a process of its own.

    ATTNPRIOR_TRACKING=off leaves it out; `attnprior track` can follow at any time.
    """
    if os.environ.get("ATTNPRIOR_TRACKING") == "off":
        yield
        return
    child = subprocess.Popen(
        [sys.executable, "-m", "attnprior.workflow.tracking", "--follow"],
        stdin=subprocess.PIPE,
        env={**os.environ, **environment.job_environment(".")},
        process_group=0,  # Ctrl-C in the terminal is not for it: it ends after the jobs
    )
    try:
        yield
    finally:
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(120)
        except subprocess.TimeoutExpired:
            child.kill()
            print(
                "attnprior: tracking took too long and was stopped; later: attnprior track", file=sys.stderr
            )


def _untracked() -> bool:
    from attnprior.workflow import tracking

    return tracking.pending(Path("."))


def _summary(studies: list[str], progress: Progress, wall: float, status: int) -> None:
    for study in studies:
        table = Path(f"results/{study}/table.md")
        if status == 0 and table.is_file():
            print(f"\n{table.read_text(encoding='utf-8').rstrip()}\n")
    if status == 0:
        print("tables and report:    " + ", ".join(f"results/{s}/" for s in studies))
        print("weights and metrics:  runs/{dataset}/{student}/seed{k}/, teachers/, fits/")
        print(
            "logs:                 logs/    MLflow: attnprior ui    versions: dvc.lock (commit it with git)"
        )
    print(time_split(progress.done.values(), wall))


def time_split(records, wall: float) -> str:
    """Return a line that splits the wall time into computing and the rest.

    Computing is the time of the stages' own work, shared over the cores that were busy; the rest
    is process starts (Python, torch), Snakemake, DVC and MLflow.
    """
    records = list(records)
    compute = sum(r["seconds"]["compute"] * r["threads"] for r in records)
    startup = sum(r["seconds"]["startup"] * r["threads"] for r in records)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    computing = min(wall, compute / cores)
    return (
        f"time: {_minutes(wall)}; {len(records)} jobs on {cores} cores: computing {_minutes(computing)},"
        f" engines and start-up {_minutes(wall - computing)} (process starts {_minutes(startup / cores)})"
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.1f} s"
