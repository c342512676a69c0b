"""The MLflow runs of given jobs; the store is only read, and none is made."""

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from attnprior.errors import one_line, tell
from attnprior.workflow.mlflow_check import check_store
from attnprior.workflow.mlflow_open import (
    EXPERIMENT,
    is_new_sqlite,
    make_quiet,
    tracking_uri,
)

LOCAL_PAGES = "http://127.0.0.1:5000"  # of `attnprior ui`


def find_runs(records: Iterable[dict[str, Any]], root: Path | str = ".") -> dict[str, dict[str, str]]:
    """Return {job name: its MLflow run (`id` and `url`)} for the run.json contents that the store knows.

    A store that does not answer costs a warning line.
    """
    uri = tracking_uri(root)
    if os.environ.get("ATTNPRIOR_TRACKING") == "off" or is_new_sqlite(uri):
        return {}
    try:
        check_store(uri)
        by_job = _runs(uri)
    except Exception as e:  # MLflow, its data base and its server fail in many ways
        tell(f"warning: MLflow at {uri} does not answer: {one_line(e)[:200]}")
        return {}
    pages = uri if uri.startswith("http") else LOCAL_PAGES
    found = {}
    for record in records:
        run = _nearest(by_job.get(record["job"], []), record)
        if run is not None:
            url = f"{pages.rstrip('/')}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
            found[record["job"]] = {"id": run.info.run_id, "url": url}
    return found


def _runs(uri: str) -> dict[str, list[Any]]:
    make_quiet()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    by_job: dict[str, list[Any]] = {}
    token = None
    while experiment is not None:
        page = client.search_runs([experiment.experiment_id], max_results=1000, page_token=token)
        for run in page:
            by_job.setdefault(run.data.tags.get("attnprior.job", ""), []).append(run)
        token = page.token
        if not token:
            break
    return by_job


def _nearest(runs: list[Any], record: dict[str, Any]) -> Any | None:
    """Return the run of the same invocation that started nearest to the job."""
    same = [r for r in runs if r.data.tags.get("attnprior.invocation") == record.get("invocation")]
    started = 1000 * datetime.fromisoformat(record["started"]).timestamp()
    return min(same, key=lambda r: abs(r.info.start_time - started), default=None)
