"""What the machine did for each job, as MLflow's system metrics."""

import csv
from pathlib import Path

from attnprior.workflow.eventlogs import LoggedJob, milliseconds
from attnprior.workflow.mlflow_store import Store
from attnprior.workflow.progress import read_record

# Columns of a benchmark file; the load is that of one core in percent, traffic is in MB.
BENCHMARK = {
    "mean_load": "cpu_utilization_percentage",
    "max_rss": "max_rss_megabytes",
    "cpu_time": "cpu_seconds",
    "io_in": "disk_read_megabytes",
    "io_out": "disk_written_megabytes",
}


def system_metrics(store: Store, jobs: list[LoggedJob]) -> str:
    """Add to each finished job's run what is not there yet, named `system/…`; return what was done."""
    added = 0
    for job in jobs:
        known = store.jobs.get(job.job_id)
        if known is None or known.deleted or job.replaced or job.status(False) != "FINISHED":
            continue
        found = {k: v for k, v in machine_values(job, store.root).items() if k not in known.metrics}
        if found:
            step = max((e["step"] for e in job.events if e["event"] == "metrics"), default=0)
            store.log_metrics(known, [(k, v, milliseconds(job.events[-1]), step) for k, v in found.items()])
            added += len(found)
    return f"{added} new system metrics"


def machine_values(job: LoggedJob, root: Path) -> dict[str, float]:
    """Return what a job's run.json and benchmark file say of the machine; what is missing is left out."""
    out: dict[str, float] = {}
    records = [p for p in (job.end or {}).get("artifacts", []) if p.endswith("run.json")]
    record = read_record(str(root / records[0])) if records else {}
    if record.get("job") == job.start["job"] and record.get("invocation") == job.latest_start.get(
        "invocation"
    ):
        out |= {f"system/{k}_seconds": float(v) for k, v in record["seconds"].items()}
    try:
        benchmark = job.path.with_name(job.path.name.replace(".events.jsonl", ".benchmark.tsv"))
        with open(benchmark, encoding="utf-8", newline="") as f:
            row = next(csv.DictReader(f, delimiter="\t"))
    except (OSError, StopIteration):
        return out
    for column, name in BENCHMARK.items():
        try:
            out[f"system/{name}"] = float(row[column])
        except (KeyError, TypeError, ValueError):  # "NA" or "-" for a job of less than a few seconds
            continue
    return out
