"""`attnprior run`: recover what is finished, correct the records, run the rest, record as it finishes."""

import contextlib
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, tell
from attnprior.workflow import (
    batch,
    capacity,
    environment,
    failures,
    graph,
    manifest,
    orphans,
    params,
    repair,
    stop,
    sync,
)
from attnprior.workflow.activate import activate
from attnprior.workflow.engines import Stages, snakemake_graph
from attnprior.workflow.follower import tracker
from attnprior.workflow.live import view
from attnprior.workflow.lock import RunLock, run_lock
from attnprior.workflow.progress import Progress, earlier_seconds
from attnprior.workflow.recorder import Recorder
from attnprior.workflow.scheduler import LOGS, options_of
from attnprior.workflow.state import Hashes
from attnprior.workflow.summary import print_summary

POLL = 1.0  # seconds between looks at the running jobs
RECORD_EVERY = 60.0  # seconds between records in dvc.lock


def run(studies: list[str], snakemake_args: list[str], *, dry: bool = False) -> int:
    """Make the named studies (the active ones by default) and return the exit status.

    Raises:
        UserError: settings are wrong, the checkout is locked, or an engine refuses.
    """
    begun = time.time()
    settings = params.load(studies=studies, every=studies == ["all"])
    if studies == ["all"]:  # scaled ones are made when they are named
        studies = [name for name, study in settings["studies"].items() if "scaled" not in study]
    for study in studies:
        params.check_study(settings, study)
    dry = dry or bool({"-n", "--dry-run", "--dryrun"} & set(snakemake_args))
    options = options_of(snakemake_args)
    new = [s for s in studies if s not in settings["active"]]
    if new:  # judged before params.yaml changes
        settings = {**settings, "active": [*settings["active"], *new]}
        params.check_teacher_seeds(settings)
    if not batch.is_remote(options):
        capacity.check_fits(settings, studies or settings["active"])
    if dry:
        return _dry_run(settings, studies, new, options)
    with run_lock() as lock:
        if new:
            activate(new)
            settings = params.load()
        for path in sync.write_generated(settings):
            print(f"attnprior: {path} written")
        return _run(settings, studies or settings["active"], snakemake_args, options, lock, begun)


def _dry_run(settings: dict, studies: list[str], new: list[str], options: Any) -> int:
    for name in new:
        print(
            f"study {name!r} is not active yet: `attnprior run {name}` adds it to `active` in {params.PARAMS}"
        )
    with snakemake_graph(graph.targets(settings, studies or None), options=options) as jobs:
        found = sync.reconcile(jobs, Hashes(), write=False)
        batch.check(options, jobs, found.planned)
    for job in found.planned:
        print(f"{job.key}: {found.stale.get(job.key, 'follows from jobs above')}")
    print(f"{len(found.planned)} of {len(jobs.jobs)} jobs to run")
    return 0


def _run(
    settings: dict, studies: list[str], snakemake_args: list[str], options: Any, lock: RunLock, begun: float
) -> int:
    hashes = Hashes()
    batch.sweep_earlier()
    orphans.wait()
    for path in repair.remove_damaged_checkpoints():
        tell(f"attnprior: {path} was damaged and is deleted; its training starts afresh")
    with snakemake_graph(graph.targets(settings, studies), options=options) as jobs:
        found = sync.reconcile(jobs, hashes)
        batch.check(options, jobs, found.planned)
    if found.adopted:
        print(f"attnprior: {len(found.adopted)} finished jobs taken over as they are")
    before = manifest.stages()
    with Stages() as stages:
        recorder = Recorder(stages, jobs, hashes, found)
        recorder.settle()
        status, progress = 0, Progress(found.planned, earlier_seconds(jobs.jobs))
        if found.planned:
            print(f"attnprior: {len(found.planned)} of {len(jobs.jobs)} jobs to run")
            sys.stdout.flush()
            with tracker():
                status = _snakemake(studies, settings, snakemake_args, options, lock, progress, recorder)
            recorder.settle()
        elif _untracked():
            with tracker():
                pass
        for line in manifest.renew(before, recorder.current(), recorder.outs):
            print(f"attnprior: {line}")
    if status == 0 and not found.planned:
        print(f"attnprior: nothing to do, all {len(jobs.jobs)} jobs are current")
    print_summary(studies, progress.done.values(), time.time() - begun, status)
    return status


def _snakemake(
    studies, settings, args, options, lock: RunLock, progress: Progress, recorder: Recorder
) -> int:
    """Run Snakemake to the end, showing and recording jobs as they finish."""
    wanted = [] if set(studies) == set(settings["active"]) else graph.targets(settings, studies)
    invocation = uuid.uuid4().hex
    log = Path(LOGS, f"{time.strftime('%Y%m%d-%H%M%S')}-{invocation[:8]}.log")
    command = [sys.executable, "-m", "attnprior.workflow.scheduler", *args]
    command += ["--", *wanted] if wanted else []
    progress.invocation = invocation
    env = environment.child_environment(ATTNPRIOR_INVOCATION=invocation)
    lock.note(running=True, invocation=invocation)
    remote = batch.is_remote(options)
    with view(progress) as screen, stop.stoppable(screen.stopping, remote=remote) as stopper:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "w", encoding="utf-8") as out:
                stopper.child = child = subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=env,
                    pass_fds=(lock.fd,),
                    process_group=0 if remote else None,  # Ctrl-C reaches it once, through `stopper`
                )
        except OSError as e:
            raise UserError(f"{log}: {e.strerror}; free space or make it writable") from e
        lock.note(running=True, invocation=invocation, snakemake=child.pid)
        last = time.time()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
            done = child.returncode is not None
            # Jobs of a killed Snakemake go on; those that a signal ended are told of in one line.
            finished, failed = progress.update(last=done and child.returncode >= 0)
            failed += progress.stopped() if done else []  # Snakemake may have submitted them again
            screen.show(finished, [] if stopper.number else failed)
            recorder.finished(finished)
            for job in finished:
                repair.remove_left_over(job.outputs)
            if done:
                break
            stopper.enforce()
            if time.time() - last > RECORD_EVERY:
                with contextlib.suppress(UserError):  # another DVC command works: `settle` tries again
                    recorder.record()
                last = time.time()
    lock.note(running=bool(repair.lock_files()))
    batch.sweep(options, log)
    if stopper.number:
        failures.explain_stop(len(progress.unfinished()), progress.snapshot.total)
        return 128 + stopper.number
    if child.returncode:
        failures.explain(progress, log, child.returncode)
    return 1 if child.returncode else 0


def _untracked() -> bool:
    from attnprior.workflow import tracking

    return tracking.pending(Path("."))
