"""What `attnprior run` writes to `dvc.lock`, while jobs finish and at the end."""

from collections.abc import Iterable

from attnprior.workflow import cache, check, sync
from attnprior.workflow.engines import Graph, Job, Stages
from attnprior.workflow.state import Hashes, stale_because

PATIENCE = 600.0  # seconds for another DVC command: a `dvc push` takes its time, but so did the run


class Recorder:
    """Writes to dvc.lock the stages whose jobs are all current, and nothing else."""

    def __init__(self, stages: Stages, jobs: Graph, hashes: Hashes, found: sync.Reconciled) -> None:
        self._stages, self._hashes = stages, hashes
        outs = stages.outs()
        self.outs = [out for names in outs.values() for out in names]
        self._jobs = check.jobs_of(outs, jobs.jobs)
        self._stale = {j.key for j in found.planned}
        self._changed = cache.remove_damaged_copies() | set(stages.changed(PATIENCE)) | cache.wrong_sizes()
        self._changed |= {n for n, group in self._jobs.items() if any(j.key in self._stale for j in group)}

    def finished(self, jobs: Iterable[Job]) -> None:
        """Note jobs that finished: they count as current if their content says so."""
        for job in jobs:
            if stale_because(job, self._hashes) is None:
                self._stale.discard(job.key)

    def current(self) -> list[Job]:
        """Return the jobs whose files are current."""
        return [j for group in self._jobs.values() for j in group if j.key not in self._stale]

    def settle(self) -> None:
        """Record until nothing is left to record: a stage's new record can change the stages after it."""
        while self.record(PATIENCE):
            self._changed = set(self._stages.changed(PATIENCE))

    def record(self, patience: float = 0) -> bool:
        """Commit every changed stage all of whose jobs are current; return whether there was one.

        Raises:
            UserError: DVC refuses, for example since another command has held its lock for all of `patience`.
        """
        ready = [
            name
            for name in self._changed
            if self._jobs.get(name) and not any(j.key in self._stale for j in self._jobs[name])
        ]
        if ready:
            self._stages.commit(sorted(ready), patience)
            self._changed -= set(ready)
        return bool(ready)
