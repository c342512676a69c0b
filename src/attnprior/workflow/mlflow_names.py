"""What a job is called in MLflow: names and tags that sort and filter, parameters in shared columns."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnprior.workflow import graph
from attnprior.workflow.eventlogs import LoggedJob

LONGEST = {"param": 6000, "tag": 5000, "digest": 36}
RECORDS = {  # the run.json of each rule's jobs
    "fetch_dataset": "data/{dataset}.run.json",
    "pretrain_teacher": "teachers/{dataset}/{teacher}/seed{seed}/run.json",
    "fit_impulse": "fits/{fit}/seed{seed}/run.json",
    "train_student": "runs/{dataset}/{student}/seed{seed}/run.json",
    "evaluate": "runs/{dataset}/{student}/seed{seed}/evaluate.run.json",
    "compare": "results/{study}/run.json",
    "against_paper": "results/{study}/paper.run.json",
    "extract_maps": "results/{study}/maps.run.json",
    "draw": "results/{study}/draw.run.json",
    "report": "results/{study}/report.run.json",
}
ENTRIES = ("models", "recipes", "teachers", "fits", "students", "datasets", "studies")


def run_name(start: dict) -> str:
    """Return a name that sorts by stage, arm and seed: train_student/digits/copy/seed003."""
    seed = (start.get("wildcards") or {}).get("seed")
    name = start["job"]
    return name if seed is None else f"{name.removesuffix(f'/seed{seed}')}/seed{seed:03}"


def parent_name(invocation: str, begun: str) -> str:
    """Return the name of the run above all jobs of one invocation, which sorts by time (`begun` in UTC)."""
    return invocation if invocation == "snakemake" else f"run {begun} {invocation[:8]}"


def tags_of(job: LoggedJob, studies: dict[str, list[str]]) -> dict[str, str]:
    """Return the tags of a job; `studies` names those that use each job, by its record."""
    now, end = job.latest_start, job.end or {}
    wildcards = now.get("wildcards") or {}
    tags: dict[str, Any] = {
        "stage": now["rule"],
        **{k: v for k, v in wildcards.items() if k != "seed"},
        "commit": now.get("commit"),
        "attempt": now.get("attempt", 1),
        "attnprior.job": now["job"],
        "mlflow.source.git.commit": now.get("commit"),
        "attnprior.params_digest": now.get("params_digest"),
        "attnprior.device": now.get("device"),
        "attnprior.error": end.get("error") if end.get("status") == "failed" else None,
    }
    if "seed" in wildcards:
        tags["seed"] = f"{wildcards['seed']:03}"
    if "student" in wildcards:
        tags["arm"] = f"{wildcards['dataset']}-{wildcards['student']}"
        tags |= _sources((now.get("params") or {}).get(f"students.{wildcards['student']}") or {})
    if used := studies.get(record_of(now["rule"], wildcards)):
        tags["study"] = ",".join(used)
    if now.get("invocation"):
        tags["attnprior.invocation"] = now["invocation"]
    if now.get("inputs"):
        tags["attnprior.inputs"] = json.dumps(now["inputs"], sort_keys=True)
    tags |= {f"attnprior.version.{k}": v for k, v in (now.get("versions") or {}).items()}
    return {k: str(v)[: LONGEST["tag"]] for k, v in tags.items() if v is not None}


def _sources(student: dict) -> dict[str, Any]:
    """Return where a student's attention comes from."""
    init, transfer = student.get("init") or {}, student.get("transfer") or {}
    return {
        "init": init.get("source"),
        "transfer": transfer.get("method"),
        "teacher": transfer.get("teacher") or init.get("teacher"),
        "init_teacher": init.get("teacher"),
        "fit": init.get("fit"),
    }


def record_of(rule: str, wildcards: dict) -> str:
    """Return the path of a job's run.json, empty for a job that is none of this project's."""
    form = RECORDS.get(rule, "")
    try:
        return form.format(**wildcards)
    except KeyError:
        return ""


def studies_of(params: dict) -> dict[str, list[str]]:
    """Return {run.json: the studies of `params.yaml` that use its job}."""
    found: dict[str, list[str]] = {}
    for study in params["studies"]:
        for path in graph.targets(params, [study]):
            if path.endswith("run.json"):
                found.setdefault(path, []).append(study)
    return found


def columns(params: dict) -> dict[str, str]:
    """Return a job's parameters by names that jobs share: `students.copy.labels` becomes `student.labels`.

    The name of the entry is kept as `student.name`. Of a section with several entries all keep their
    full names. Values that MLflow finds too long are cut.
    """
    out: dict[str, Any] = {}
    for key, value in params.items():
        section, _, name = key.partition(".")
        alone = sum(k.startswith(f"{section}.") for k in params) == 1
        if section in ENTRIES and alone and isinstance(value, dict):
            one = "study" if section == "studies" else section[:-1]
            out[one] = {"name": name, **value}
        else:
            out[key] = value
    return flattened(out)


def flattened(params: dict, prefix: str = "") -> dict[str, str]:
    """Return nested parameters under dotted names as MLflow takes them; long values are cut."""
    out: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, dict) and value:
            out |= flattened(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            out[f"{prefix}{key}"[:250]] = text[: LONGEST["param"]]
    return out


def data_inputs(inputs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return MLflow's fields of the data sets among a job's (path, SHA-256) inputs.

    MLflow's digest has room for the first 36 of the 64 digits; the source holds all.
    """
    return [
        {
            "name": Path(path).stem,
            "digest": sha256[: LONGEST["digest"]],
            "source_type": "local",
            "source": json.dumps({"uri": path, "sha256": sha256}),
        }
        for path, sha256 in inputs
        if path.startswith("data/")
    ]
