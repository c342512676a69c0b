"""Runs whose jobs a batch system executes: checks before anything is submitted, and what is left after."""

import contextlib
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, tell
from attnprior.workflow import remote, slurm
from attnprior.workflow.engines import LOCAL, Graph, Job


def is_remote(options: Any) -> bool:
    """Return whether jobs run elsewhere, by what `scheduler.options_of` returns."""
    return options is not None and options.executor not in (LOCAL, "local", "dryrun", "touch")


def check(options: Any, graph: Graph, planned: list[Job]) -> None:
    """Check that the batch system, or nodes, can run the planned jobs, before any is submitted.

    Raises:
        UserError: it cannot be asked, or can never run a job as it is; files cannot travel.
    """
    if planned and _by_nodes(options):
        made = {path for job in planned for path in job.outputs}
        remote.check({path for job in planned for path in job.inputs} - made)
    if not planned or not _by_slurm(options):
        return
    known, default = slurm.partitions()
    # One for all jobs of a rule that ask for the same.
    requests: dict[tuple[int, str, str], slurm.Request] = {}
    for attempt in sorted({1, 1 + (options.retries or 0)}):
        for job in planned:
            resources = graph.resources(job, attempt)
            alike = attempt, job.rule, str(sorted(map(str, resources.items())))
            requests.setdefault(alike, slurm.Request(job.key, attempt, resources))
    slurm.check(requests.values(), known, default)


def sweep(options: Any, log: Path) -> None:
    """Cancel what is left in the queue of the run with these options and Snakemake's log `log`."""
    if _by_slurm(options):
        _cancel(log, "")


def sweep_earlier() -> None:
    """Cancel what a killed run left in Slurm's queue, wherever the jobs of this run are executed."""
    if (log := slurm.newest_log()) is not None:
        _cancel(log, " of a killed run")


def _by_nodes(options: Any) -> bool:
    return options is not None and remote.MODULE in str(getattr(options, "cluster_generic_submit_cmd", ""))


def _by_slurm(options: Any) -> bool:
    return options is not None and options.executor == slurm.EXECUTOR


def _cancel(log: Path, whose: str) -> None:
    with contextlib.suppress(UserError, OSError):  # a dead controller is told of where it matters
        if left := slurm.cancel_left(log):
            tell(f"attnprior: {left} jobs{whose} left in Slurm's queue are cancelled")
