"""What comes back from nodes that share no file system: logs while they work, and then the outputs.

Snakemake asks for one job at a time; what all nodes say is brought here by one call every few seconds. A file
is put in its place whole.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from attnprior.errors import UserError, tell
from attnprior.files import read_json, sha256, write_json, write_text
from attnprior.seconds import seconds
from attnprior.workflow import remote_jobs as jobs
from attnprior.workflow import transport

LOOK_SECONDS = 4.0  # between two calls for what nodes say
SILENCE = "ATTNPRIOR_REMOTE_SILENCE"  # environment: seconds without a word after which a node counts as lost
SILENCE_SECONDS = 600.0
LEFT_SECONDS = 60.0  # instead, where the command that started the job has failed: some of a node's words
START_LOG, START_STATUS = "start.log", "start.status"  # of ATTNPRIOR_REMOTE_START
BEAT, NONE = "beat.json", "unreachable"  # a node's newest word and since when; there could be none
LOOKED = jobs.HERE / "looked"  # its time stamp: when that was brought here last


def status(job_id: str) -> str:
    """Return running, success or failed; success once all outputs are here and in their places.

    That the URL cannot be reached for a while is told, and does not fail a job.
    """
    job = jobs.noted(job_id)
    if job is None:
        tell(f"error: job {job_id} is not known in {jobs.JOBS}")
        return "failed"
    try:
        look(job["url"], now=not_started(job_id) is not None)  # its end, if a node had it, is at the URL
        end = jobs.said(job_id, jobs.END)
        if end is not None:
            return _ended(job, end)
        heard = jobs.said(job_id, jobs.LIVE)
        why = None if heard else not_started(job_id)
        if heard is not None:
            _place_logs(job, heard)
            if silent(job):
                why = f"node {heard['node']} is not heard of any more; it died, or lost its way to the URL"
    except (UserError, OSError) as e:
        if _newest(job).get("beat") != NONE:  # once
            tell(f"warning: {job['job']}: {e}")
        why = str(e) if _beat(job, NONE) else None
    if why is None:
        return "running"
    ask_to_stop([job])  # should it still be there
    _fail(job, why)
    return "failed"


def look(where: str, *, now: bool = False) -> None:
    """Bring what nodes say of all jobs at work, unless that was done a moment ago and it must not be `now`.

    Raises:
        Failed: the URL cannot be read.
    """
    age = time.time() - LOOKED.stat().st_mtime if LOOKED.exists() else LOOK_SECONDS
    if not now and 0 <= age < LOOK_SECONDS:
        return
    transport.follow(where, [f"jobs/{j['id']}" for j in jobs.at_work() if j["url"] == where], jobs.MIRROR)
    LOOKED.touch()


def ask_to_stop(found: Iterable[dict]) -> None:
    """Ask the nodes that work on these jobs to stop, as far as the URL can be reached."""
    marks: dict[str, list[str]] = {}
    for job in found:
        marks.setdefault(job["url"], []).append(f"jobs/{job['id']}/{jobs.CANCEL}")
    for where, names in marks.items():
        with contextlib.suppress(transport.Failed):
            transport.send_text(where, names, "stop\n")


def silent(job: dict) -> bool:
    """Return whether the node of a job that had begun has said nothing new for long.

    Less is long if the command that started it has failed since: it stays as long as the job, as ssh does.
    """
    heard = jobs.said(job["id"], jobs.LIVE)
    return heard is not None and _beat(job, str(heard["beat"]), left=not_started(job["id"]) is not None)


def promising(job: dict) -> bool:
    """Return whether a job of an earlier run waits, runs or has succeeded, by what was brought here last."""
    end = jobs.said(job["id"], jobs.END)
    if end is not None or job.get("cancelled"):
        return end is not None and end["status"] == "success"
    return bool(job.get("started")) and not_started(job["id"]) is None and not silent(job)


def _beat(job: dict, beat: str, *, left: bool = False) -> bool:
    """Return whether `beat` has been the newest for too long, by this machine's clock alone."""
    known, now = _newest(job), time.time()
    if known.get("beat") != beat:
        known = {"beat": beat, "since": now}
        write_json(jobs.JOBS / job["id"] / BEAT, known)
    patience = seconds(SILENCE, SILENCE_SECONDS)
    return now - known["since"] > (min(patience, LEFT_SECONDS) if left else patience)


def _newest(job: dict) -> dict:
    path = jobs.JOBS / job["id"] / BEAT
    return read_json(path) if path.exists() else {}


def not_started(job_id: str) -> str | None:
    """Return why the command that starts a job has failed, None if it has not, or not yet."""
    folder = jobs.JOBS / job_id
    status = folder / START_STATUS
    if not status.exists() or (code := status.read_text().strip()) in ("", "0"):
        return None
    lines = (folder / START_LOG).read_text(errors="replace").strip().splitlines()
    return f"ATTNPRIOR_REMOTE_START failed with status {code}: {lines[-1][:300] if lines else 'no output'}"


def _ended(job: dict, end: dict) -> str:
    _place_logs(job, end)
    if end["status"] != "success":
        _fail(job, end["error"])
        _remove(job)
        return "failed"
    folder = jobs.JOBS / job["id"] / "outputs"
    names = {path: f"files/{sha}" for path, sha in end["outputs"].items()}
    transport.fetch(job["url"], set(names.values()), folder)
    for path in job["outputs"]:
        if not (folder / names[path]).exists() or sha256(folder / names[path]) != end["outputs"][path]:
            raise UserError(f"{path}: not at {job['url']}/{names[path]} as the node sent it")
    for path in job["outputs"]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        own = folder / "own"
        # A copy, for two outputs may be equal. It is newer than the inputs, whatever a node's clock says.
        shutil.copyfile(folder / names[path], own)
        os.replace(own, path)
    jobs.forget(job["id"])
    _remove(job)
    return "success"


def _place_logs(job: dict, heard: dict) -> None:
    for path, text in heard["logs"].items():
        if text is not None and (not os.path.exists(path) or _differs(path, text)):
            write_text(path, text)


def _differs(path: str, text: str) -> bool:
    content = text.encode()
    return os.path.getsize(path) != len(content) or Path(path).read_bytes() != content


def _fail(job: dict, why: str) -> None:
    """Say in the job's own log why it failed, if it could not say so itself."""
    log = Path(job["logs"]["text"])
    before = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if not before.rstrip().rpartition("\n")[2].startswith(("error: ", "stopped by ")):
        write_text(log, f"{before}error: {why}\n")
    jobs.forget(job["id"])


def _remove(job: dict) -> None:
    with contextlib.suppress(transport.Failed):
        transport.remove(job["url"], f"jobs/{job['id']}")
