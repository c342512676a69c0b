"""Jobs for nodes that share no file system: what one takes along, and what is noted here of those at work.

At the URL: `files/SHA256` inputs and outputs by content, `checkpoints/…` as in a checkout, and while a job is
at work `jobs/ID/`: `job.json` (what to do), `live.json` (the node's, renewed while it works), `end.json` (its
last word), `cancel` (to be stopped). Here: `.snakemake/remote`.
"""

import contextlib
import json
import os
import shlex
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import digest, read_json, sha256, write_json

HERE = Path(".snakemake/remote")
JOBS, MIRROR, HASHES = HERE / "jobs", HERE / "at_url", HERE / "hashes.json"
SOURCES = "src/attnprior/"  # of a job's inputs, what a node has of its own
WORK = "job.json"  # files of a job at the URL
LIVE, END, CANCEL = "live.json", "end.json", "cancel"
PROPERTIES = "# properties = "
# What a job's command gets of the environment here; nodes have their own paths.
VARIABLES = (
    "ATTNPRIOR_COMMIT",
    "ATTNPRIOR_INVOCATION",
    "ATTNPRIOR_CHECKPOINT_SECONDS",
    "DVC_NO_ANALYTICS",
    "MLFLOW_DISABLE_TELEMETRY",
    "DO_NOT_TRACK",
)


def properties(script: Path) -> dict:
    """Return what Snakemake wrote of the job in the head of its job script.

    Raises:
        UserError: it is no script of a single job.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in script.read_text(encoding="utf-8").splitlines():
            if line.startswith(PROPERTIES):
                found = json.loads(line.removeprefix(PROPERTIES))
                if found.get("type") == "single":
                    return found
    raise UserError(f"{script}: no script of a single job; groups of jobs (--groups) cannot be sent to nodes")


def name(rule: str, wildcards: dict) -> str:
    """Return what tells a job from all others of its graph."""
    return "/".join([rule, *(f"{k}={v}" for k, v in sorted(wildcards.items()))])


def task(asked: dict, folder: Path) -> dict:
    """Return command and files of the job with the properties `asked`.

    The graph is read for the first job of a run and kept in `folder`, which is the run's.

    Raises:
        UserError: the graph has no such job, or cannot be read.
    """
    wanted, kept = name(asked["rule"], asked["wildcards"]), folder / "attnprior-tasks.json"
    known = read_json(kept) if kept.exists() else {}
    if wanted not in known:
        for targets in ([], (asked["output"] or [])[:1]):  # the second for what is not active
            known |= _tasks(targets)
            if wanted in known:
                break
        write_json(kept, known)
    if wanted not in known or known[wanted]["params"] != asked["params"]["json"]:
        raise UserError(f"{wanted}: params.yaml or the rules changed since the run began; run again")
    return with_threads(known[wanted], asked["threads"])


def _tasks(targets: Iterable[str]) -> dict[str, dict]:
    from attnprior.workflow.engines import snakemake_graph

    with snakemake_graph(targets) as graph:
        return {name(j.rule, j.wildcards): _task(graph, j) for j in graph.jobs}


def _task(graph, job) -> dict:
    command, benchmark = graph.command(job)
    return {
        "job": job.key,
        "command": command,
        "params": job.params,
        "inputs": job.inputs,
        "outputs": [p for p in job.outputs if p != job.run_json] + [job.run_json],  # the last says: finished
        "logs": job.logs,
        "benchmark": benchmark,
        "checkpoint": checkpoint(command),
    }


def with_threads(task: dict, threads: int) -> dict:
    """Return `task` with the number of threads that this run gives its job."""
    before, option, after = task["command"].rpartition(" --threads ")  # settings stand before it
    return {**task, "command": f"{before}{option}{threads} {after.partition(' ')[2]}"}


def checkpoint(command: str) -> str | None:
    """Return the folder of checkpoints that a command names, if it names one."""
    words = shlex.split(command)
    return words[words.index("--checkpoint") + 1] if "--checkpoint" in words else None


def parts(inputs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the inputs to send, and the code that nodes must have themselves.

    Raises:
        UserError: one lies outside of the checkout.
    """
    sent: list[str] = []
    code: list[str] = []
    for path in inputs:
        if os.path.isabs(path) or os.path.normpath(path).startswith(".."):
            raise UserError(
                f"{path}: lies outside of the checkout, so no node gets it; make the data set here first:"
                " attnprior run -- --until fetch_dataset"
            )
        (code if path.startswith(SOURCES) else sent).append(path)
    return sent, code


def package(task: dict, hashes: dict[str, str]) -> dict:
    """Return the job for a node, with a new id, from its task and the SHA-256 of its inputs."""
    sent, code = parts(task["inputs"])
    found = {
        **{k: v for k, v in task.items() if k != "params"},
        "inputs": {path: hashes[path] for path in sent},
        "code": {path: hashes[path] for path in code},
    }
    return {
        **found,
        "digest": digest(found),
        "id": f"{task['job'].replace('/', '-')}-{uuid.uuid4().hex[:8]}",
        "environment": {k: os.environ[k] for k in VARIABLES if k in os.environ},
    }


def hashed(paths: Iterable[str]) -> dict[str, str]:
    """Return {path: SHA-256}; what is known of files with the same size and time stamp is not read again.

    Raises:
        UserError: one cannot be read.
    """
    known: dict[str, list] = read_json(HASHES) if HASHES.exists() else {}
    found, new = {}, False
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as e:
            raise UserError(f"{path}: cannot be read ({e.strerror})") from e
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        if known.get(path, [])[:-1] != state:
            known[path], new = [*state, sha256(path)], True
        found[path] = known[path][-1]
    if new:
        write_json(HASHES, known)
    return found


def note(job: dict, **more) -> None:
    """Keep a job that is at work, or change what is kept of it."""
    write_json(JOBS / job["id"] / WORK, {**job, **more})


def noted(job_id: str) -> dict | None:
    """Return a job that is at work, None if it is not known here."""
    path = JOBS / job_id / WORK
    return read_json(path) if path.exists() else None


def at_work() -> list[dict]:
    """Return all jobs that are at work, or were when nobody looked any more."""
    return [read_json(path) for path in sorted(JOBS.glob(f"*/{WORK}"))]


def forget(job_id: str) -> None:
    """Remove what is kept of a job."""
    for folder in (JOBS, MIRROR / "jobs"):
        shutil.rmtree(folder / job_id, ignore_errors=True)


def said(job_id: str, which: str) -> dict | None:
    """Return what a node has said last, as far as it was brought here."""
    path = MIRROR / "jobs" / job_id / which
    return read_json(path) if path.exists() else None
