"""Trained students as MLflow models: weights in safetensors and the code that reads them, no pickle."""

import json
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, nearest
from attnprior.files import digest, load_tensors, read_header, read_json, sha256, write_json
from attnprior.source import PREFIX, code_files, code_path
from attnprior.workflow import graph
from attnprior.workflow.eventlogs import LoggedJob
from attnprior.workflow.mlflow_store import Store

LOADER = "attnprior.served"
TAG = "attnprior.model"  # of a run: SHA-256 of the weights that were logged as its model
REQUIRED = ("mlflow", "numpy", "safetensors", "torch")
EXAMPLES = 2  # images of the input example


def wanted_jobs(params: dict, arms: list[str]) -> set[str]:
    """Return the names of the training jobs of `arms` ("digits-copy"), or of all arms if none is named.

    Raises:
        UserError: no active study has such an arm.
    """
    known = {arm.key: arm for arm in graph.all_arms(params)}
    for arm in arms:
        if arm not in known:
            raise UserError(
                f"--models {arm}: no arm of the active studies{nearest(arm, known)};"
                f" known: {', '.join(known)}"
            )
    return {
        f"train_student/{a.dataset}/{a.student}/seed{k}"
        for a in (known[key] for key in arms or known)
        for k in a.seeds
    }


def log_models(store: Store, jobs: list[LoggedJob], wanted: set[str]) -> str:
    """Log the students of the `wanted` jobs that are finished and as their run.json says; return a summary.

    A student whose weights were logged is passed over. It takes about 0.1 s of a core each.
    """
    new = known = 0
    code: Path | None = None
    with tempfile.TemporaryDirectory(prefix="attnprior-") as folder:
        for job in jobs:
            run = store.jobs.get(job.job_id)
            if job.start["job"] not in wanted or run is None or run.deleted or job.replaced:
                continue
            found = student_files(job, store.root)
            if found is None:
                continue
            if run.tags.get(TAG) == found["digest"]:
                known += 1
                continue
            code = code or _copy_code(Path(folder))
            _log_model(store, job, found, code, Path(folder, f"model{new}"))
            new += 1
    return f"{new} new models, {known} known"


def student_files(job: LoggedJob, root: Path) -> dict[str, Any] | None:
    """Return the files of a finished training job, None if what lies there is not what the job made."""
    if job.status(False) != "FINISHED":
        return None
    paths = {Path(p).name: root / p for p in (job.end or {}).get("artifacts", [])}
    try:
        record = read_json(paths["run.json"])
        weights = str(paths["weights.safetensors"].relative_to(root))
        inputs = dict(job.latest_start["inputs"])
        same = digest(json.loads(record["params"])) == job.latest_start["params_digest"]
        same = same and inputs.items() <= record["inputs"].items()
        if not same or sha256(paths["weights.safetensors"]) != record["outputs"][weights]:
            return None
        transfer = read_header(paths["weights.safetensors"])["transfer"]
        # Of two teachers the copied one is needed: teachers/DATA SET/NAME/seedK/weights.safetensors.
        read = [
            p for p in inputs if not p.startswith("teachers/") or p.split("/")[2] == transfer.get("teacher")
        ]
        found = {Path(p).parts[0]: root / p for p in read}
        if sha256(found["data"]) != inputs[str(found["data"].relative_to(root))]:
            return None
        return {
            "weights": paths["weights.safetensors"],
            "digest": record["outputs"][weights],
            "teacher": found["teachers"] if transfer["method"] == "copy" else None,
            "data": found["data"],
        }
    except (KeyError, UserError):
        return None


def _copy_code(folder: Path) -> Path:
    """Copy the modules that a saved student needs to load, and return the package's folder."""
    for name in [*code_files("train_student"), f"{PREFIX}/served.py"]:
        target = folder / Path(name).relative_to("src")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(code_path(name), target)
    return folder / "attnprior"


def _log_model(store: Store, job: LoggedJob, found: dict[str, Any], code: Path, folder: Path) -> None:
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from mlflow import pyfunc
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    start, run = job.latest_start, store.jobs[job.job_id]
    wildcards = start["wildcards"]
    name = f"{wildcards['dataset']}-{wildcards['student']}-seed{wildcards['seed']:03}"
    data, signature, example = _described(found)
    parts = folder / "parts"
    parts.mkdir(parents=True)
    os.symlink(found["weights"].resolve(), parts / "weights.safetensors")
    if found["teacher"] is not None:
        os.symlink(found["teacher"].resolve(), parts / "teacher.safetensors")
    write_json(parts / "about.json", {k: data[k] for k in ("mean", "std", "classes")})
    model = store.client.create_logged_model(
        store.experiment,
        name,
        source_run_id=run.run_id,
        tags={"arm": run.tags.get("arm", ""), "seed": run.tags.get("seed", ""), TAG: found["digest"]},
        model_type="student",
    )
    pyfunc.save_model(
        str(folder / "model"),
        loader_module=LOADER,
        data_path=str(parts),
        code_paths=[str(code)],
        mlflow_model=Model(run_id=run.run_id, model_id=model.model_id),
        signature=signature,
        input_example=example,
        pip_requirements=[f"{p}=={metadata.version(p).partition('+')[0]}" for p in REQUIRED],
    )
    store.client.log_model_artifacts(model.model_id, str(folder / "model"))
    store.client.finalize_logged_model(model.model_id, "READY")
    store.client.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, step=0)])
    for key, value in (("model", f"models:/{model.model_id}"), (TAG, found["digest"])):
        store.client.set_tag(run.run_id, key, value)
        run.tags[key] = value


def _described(found: dict[str, Any]) -> tuple[dict, Any, Any]:
    """Return the header of the data file, the model's signature and an example of its input."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    tensors, header = load_tensors(found["data"], "numpy")
    images = tensors["images"]
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *images.shape[1:]))]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, len(header["classes"])))]),
    )
    return header, signature, images[:EXAMPLES]
