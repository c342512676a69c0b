"""Writes jobs into an MLflow store; importing this module does not import MLflow, opening a store does."""

import gc
import itertools
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnprior.errors import UserError
from attnprior.workflow import params
from attnprior.workflow.eventlogs import LoggedJob, milliseconds
from attnprior.workflow.experiment import is_of_experiment
from attnprior.workflow.mlflow_names import columns, data_inputs, parent_name, run_name, studies_of, tags_of
from attnprior.workflow.mlflow_open import (
    create_sqlite,
    is_new_sqlite,
    make_quiet,
    open_experiment,
    sent_once,
)

PER_CALL = {"metrics": 800, "params": 90}  # MLflow takes 1,000 metrics and 100 params, 1,000 entities in all
ATTACHED = {"compare": ("table.md", "table.csv", "metrics.json"), "report": ("report.html",)}
ATTACHED |= {"against_paper": ("paper.md", "paper.csv")}
IMPORTED = "attnprior.imported"  # which lines of the log are in the store


@dataclass
class KnownRun:
    """What the store holds of one run."""

    run_id: str
    status: str
    tags: dict[str, str]
    metrics: set[str]
    deleted: bool
    start: int
    end: int
    points: set[tuple[str, int]] | None = None  # (metric, step), read where the log may lack some of them


class Store:
    """The experiment `attnprior` of one MLflow store, its runs read once."""

    def __init__(self, uri: str, root: Path) -> None:
        """Open the store; make its tables and experiment where they are missing.

        Raises:
            UserError: the experiment was deleted.
            Exception: whatever MLflow raises for a store that is broken, unreachable or of another version.
        """
        make_quiet()
        collecting = gc.isenabled()
        gc.disable()  # the import makes many objects and no garbage
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
        from mlflow.tracking import MlflowClient

        if collecting:
            gc.enable()
        self._make = {"metric": Metric, "param": Param, "tag": RunTag}
        self._make |= {"dataset": Dataset, "input": DatasetInput, "input_tag": InputTag}
        self.root = root
        self._studies = _studies(root)
        self.project = f"{socket.gethostname()}:{root}"
        if is_new_sqlite(uri):
            create_sqlite(uri, root)
        self.client = MlflowClient(uri)
        self.experiment = open_experiment(self.client, uri, root)
        self.jobs: dict[str, KnownRun] = {}
        self.parents: dict[str, KnownRun] = {}
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment], run_view_type=ViewType.ALL, max_results=1000, page_token=token
            )
            for run in page:
                self._remember(run)
            token = page.token
            if not token:
                break

    def _remember(self, run: Any) -> KnownRun:
        info, tags = run.info, dict(run.data.tags)
        known = KnownRun(
            info.run_id,
            info.status,
            tags,
            set(run.data.metrics),
            info.lifecycle_stage == "deleted",
            info.start_time,
            info.end_time or info.start_time,
        )
        if "attnprior.job_id" in tags:
            self.jobs[tags["attnprior.job_id"]] = known
        elif "attnprior.invocation" in tags:
            self.parents[_parent_key(tags["attnprior.invocation"], tags.get("attnprior.project", ""))] = known
        return known

    def import_job(self, job: LoggedJob, active: bool) -> int:
        """Bring the run of `job` up to date and return the number of metric points added."""
        known, status = self.jobs.get(job.job_id), job.status(active)
        if known is not None and known.deleted:
            return 0  # somebody removed it on purpose
        first = job.known_lines(known.tags.get(IMPORTED, "")) if known else 0
        if known is not None and first == len(job.lines):
            if known.status != status:
                self._set_status(known, status, milliseconds(job.events[-1]))
            return 0
        if known is None:
            known = self._create(job)
        if known.points is None and (first is None or job.filled or job.resumed):
            known.points = self._stored(known)
        points = [p for p in job.points(first or 0) if (p[0], p[3]) not in (known.points or ())]
        if status == "FINISHED" and not job.replaced:
            self._attach(known, job)
        all_tags = tags_of(job, self._studies) | {IMPORTED: job.fingerprint(len(job.lines))}
        tags = {k: v for k, v in all_tags.items() if known.tags.get(k) != v}
        settings = {} if first else columns(job.start.get("params") or {})
        if not first:
            self._log_inputs(known.run_id, job)
        self._log(known.run_id, points, settings, tags)
        known.tags |= tags
        known.metrics |= {p[0] for p in points}
        if known.points is not None:
            known.points |= {(p[0], p[3]) for p in points}
        if known.status != status:
            self._set_status(known, status, milliseconds(job.events[-1]))
        return len(points)

    def _create(self, job: LoggedJob) -> KnownRun:
        parent = self._parent(job)
        begun = milliseconds(job.start)
        tags = {"attnprior.job_id": job.job_id, "attnprior.project": self.project}
        tags["status"] = "running"
        if not parent.deleted:
            tags["mlflow.parentRunId"] = parent.run_id
        with sent_once():
            run = self.client.create_run(self.experiment, begun, tags, run_name=run_name(job.start))
        return self._remember(run)

    def _parent(self, job: LoggedJob) -> KnownRun:
        invocation = job.start.get("invocation") or "snakemake"
        key = _parent_key(invocation, self.project)
        if key not in self.parents:
            tags = {"attnprior.invocation": invocation, "attnprior.project": self.project}
            tags["status"] = "running"
            begun = datetime.fromtimestamp(job.start["time"], UTC)
            name = parent_name(invocation, f"{begun:%Y-%m-%d %H:%M:%S}")
            with sent_once():
                run = self.client.create_run(self.experiment, milliseconds(job.start), tags, run_name=name)
            self._remember(run)
        return self.parents[key]

    def _stored(self, known: KnownRun) -> set[tuple[str, int]]:
        """Return the (metric, step) pairs in the store, which may be more than are in the log."""
        return {
            (key, m.step) for key in known.metrics for m in self.client.get_metric_history(known.run_id, key)
        }

    def _log(self, run_id: str, points: list, params: dict[str, str], tags: dict[str, str]) -> None:
        """Log all in as few calls as MLflow allows; the tags come last, so a cut import is noticed."""
        metrics = [self._make["metric"](k, v, t, s) for k, v, t, s in points]
        entries = [self._make["param"](k, v) for k, v in params.items()]
        calls = list(
            itertools.zip_longest(_parts(metrics, PER_CALL["metrics"]), _parts(entries, PER_CALL["params"]))
        ) or [(None, None)]
        marks = [self._make["tag"](k, v) for k, v in tags.items()]
        for number, (some_metrics, some_params) in enumerate(calls, 1):
            last = marks if number == len(calls) else []
            self.client.log_batch(run_id, some_metrics or [], some_params or [], last)

    def _log_inputs(self, run_id: str, job: LoggedJob) -> None:
        """Name the data sets that the job was trained on; MLflow keeps what it has of them already."""
        make = self._make
        found = data_inputs((job.start.get("inputs") or {}).items())
        context = [make["input_tag"]("mlflow.data.context", "train")]
        if found:
            self.client.log_inputs(run_id, [make["input"](make["dataset"](**d), context) for d in found])

    def log_metrics(self, known: KnownRun, points: list[tuple[str, float, int, int]]) -> None:
        """Add points (metric, value, time in ms, step) to a run."""
        self._log(known.run_id, points, {}, {})
        known.metrics |= {p[0] for p in points}

    def _attach(self, known: KnownRun, job: LoggedJob) -> None:
        if is_of_experiment(job.path, self.root):
            return  # what lies here under these names is not what that job made
        for path in (job.end or {}).get("artifacts", []):
            if Path(path).name in ATTACHED.get(job.start["rule"], ()) and (self.root / path).is_file():
                self.client.log_artifact(known.run_id, str(self.root / path), str(Path(path).parent))

    def _set_status(self, known: KnownRun, status: str, end: int) -> None:
        if known.tags.get("status") != status.lower():
            self.client.set_tag(known.run_id, "status", status.lower())  # can be filtered by, unlike MLflow's
            known.tags["status"] = status.lower()
        if status == "RUNNING":
            self.client.update_run(known.run_id, status=status)
        else:
            self.client.set_terminated(known.run_id, status, end)
        known.status, known.end = status, end

    def close_abandoned(self, present: set[str], starts: dict[str, int]) -> None:
        """End runs of this project whose log is gone; `starts` says when a job was started afresh."""
        for job_id, known in self.jobs.items():
            ours = known.tags.get("attnprior.project") == self.project and not known.deleted
            if ours and known.status == "RUNNING" and job_id not in present:
                self._set_status(known, "KILLED", starts.get(known.tags.get("attnprior.job", ""), known.end))

    def update_parents(self, newest: str | None, active: bool) -> None:
        """Give each parent the status and end of its children; `newest` may have jobs yet to start."""
        children: dict[str, list[KnownRun]] = {}
        for known in self.jobs.values():
            if not known.deleted:
                children.setdefault(known.tags.get("mlflow.parentRunId", ""), []).append(known)
        for parent in self.parents.values():
            found = children.get(parent.run_id, [])
            if parent.deleted or not found or parent.tags.get("attnprior.project") != self.project:
                continue
            states = {k.status for k in found}
            if (
                active
                and newest is not None
                and parent is self.parents.get(_parent_key(newest, self.project))
            ):
                states.add("RUNNING")
            status = next((s for s in ("RUNNING", "FAILED", "KILLED") if s in states), "FINISHED")
            end = max(k.end for k in found)
            if parent.status != status or (status != "RUNNING" and parent.end != end):
                self._set_status(parent, status, end)

    def running(self) -> int:
        """Return how many runs of this project, parents included, the store holds as running."""
        return sum(
            k.status == "RUNNING" and k.tags.get("attnprior.project") == self.project and not k.deleted
            for k in (*self.jobs.values(), *self.parents.values())
        )


def _studies(root: Path) -> dict[str, list[str]]:
    """Return which studies use each job, as far as the settings can be read."""
    try:
        return studies_of(params.load(root))
    except (UserError, KeyError, TypeError):
        return {}


def _parent_key(invocation: str, project: str) -> str:
    return f"{invocation}@{project}" if invocation == "snakemake" else invocation


def _parts(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]
