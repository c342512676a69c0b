"""Jobs on nodes that share no file system with this machine: what workflow/profiles/remote calls.

`python -m attnprior.workflow.remote submit JOBSCRIPT` sends the inputs to ATTNPRIOR_REMOTE_URL, has
ATTNPRIOR_REMOTE_START start the job on a node and prints its id; `status ID` prints running, success or
failed, after it has brought back what the node sent; `cancel ID...` asks the nodes to stop. Snakemake itself
runs here only, and its records are those of a run on this machine.
"""

import contextlib
import os
import shlex
import string
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from attnprior.errors import UserError, tell
from attnprior.files import write_text
from attnprior.workflow import remote_back as back
from attnprior.workflow import remote_jobs as jobs
from attnprior.workflow import transport

MODULE = "attnprior.workflow.remote"
START = "ATTNPRIOR_REMOTE_START"
FIELDS = ("rule", "threads", "mem_mb", "runtime", "gpu", "job")  # of START, in braces
AT_ONCE = 0.5  # seconds in which a command that cannot start anything has failed


def url() -> str:
    """Return where files travel through.

    Raises:
        UserError: it is not set, or nodes could not use it.
    """
    found = os.environ.get(transport.URL, "")
    if not found:
        raise UserError(
            f"{transport.URL}: not set; name the place through which files travel, such as s3://BUCKET/PREFIX"
        )
    transport.root(found)
    return found


def start_command(job_id: str, where: str, asked: dict) -> str:
    """Return the shell command that starts a job on a node; `asked` are its properties in Snakemake.

    Raises:
        UserError: ATTNPRIOR_REMOTE_START is not set, or has something else in braces than it may.
    """
    template = os.environ.get(START, "")
    if not template:
        raise UserError(
            f"{START}: not set; name the command that starts a job on a node, such as"
            " 'ssh NODE attnprior/workflow/profiles/remote/node.sh'"
        )
    resources = asked.get("resources", {})
    values = {k: resources.get(k, 0) for k in FIELDS} | {
        "rule": asked["rule"],
        "threads": asked["threads"],
        "job": job_id,
    }
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        begin = template.format_map(values)
    except (ValueError, KeyError, IndexError, AttributeError):
        used, begin = {""}, ""
    if not used <= values.keys():
        known = ", ".join(f"{{{k}}}" for k in FIELDS)
        raise UserError(f"{START}: {template!r} may have {known} in braces, and other braces doubled")
    return f"{begin} {shlex.quote(where)} {job_id}"


def check(inputs: Iterable[str]) -> None:
    """Check what every job needs, before any is submitted: settings, rclone, the inputs' place, and the URL.

    Raises:
        UserError: something is missing.
    """
    where = url()
    start_command("job", where, {"rule": "rule", "threads": 1})
    transport.program()
    jobs.parts(inputs)
    if where.startswith("/") and not Path(where).is_dir():
        raise UserError(f"{transport.URL}: there is no folder {where}; make it or mount it")
    probe = f"probe-{os.getpid()}"
    transport.send_text(where, [f"{probe}/text"], "x" * 4096)  # more than a full disk takes
    try:
        if transport.names(where, probe) != ["text"]:
            raise UserError(f"{where}: what is written there is not found there again")
    finally:
        transport.remove(where, probe)


def submit(script: Path) -> str:
    """Start the job of a job script and return its id, that of an earlier run if it still works on the same.

    Raises:
        UserError: it cannot be started; nothing is left of it here or at the URL.
    """
    where, asked = url(), jobs.properties(script)
    start_command("job", where, asked)
    task = jobs.task(asked, script.parent)
    job = jobs.package(task, jobs.hashed(task["inputs"]))
    earlier = [j for j in jobs.at_work() if j["job"] == job["job"]]
    if earlier:
        back.look(where, now=True)
    for other in earlier:
        if other["digest"] == job["digest"] and other["url"] == where and back.promising(other):
            return other["id"]
    job["after"] = [j["id"] for j in earlier if j["url"] == where]
    _stop(earlier)
    inputs: dict[str, str | Path] = {f"files/{sha}": path for path, sha in job["inputs"].items()}
    transport.patiently(lambda: transport.send(where, inputs, once=True))
    jobs.note(job, url=where)
    try:
        transport.send(where, {f"jobs/{job['id']}/{jobs.WORK}": jobs.JOBS / job["id"] / jobs.WORK})
        for path in [*job["outputs"], *job["logs"].values(), job["benchmark"]]:
            with contextlib.suppress(FileNotFoundError):  # of an earlier attempt, as Snakemake does
                os.remove(path)
        _start(job["id"], where, start_command(job["id"], where, asked))
        jobs.note(job, url=where, started=True)
    except BaseException:
        with contextlib.suppress(UserError):
            transport.remove(where, f"jobs/{job['id']}")
        jobs.forget(job["id"])
        raise
    for other in earlier:
        jobs.forget(other["id"])
    return job["id"]


def _start(job_id: str, where: str, command: str) -> None:
    """Run the command on its own, so that a killed run leaves its jobs, and wait for a quick failure."""
    folder = (jobs.JOBS / job_id).resolve()
    script = 'sh -c "$1" >"$2" 2>&1; echo $? >"$3.tmp"; mv "$3.tmp" "$3"'
    child = subprocess.Popen(
        ["sh", "-c", script, "sh", command, folder / back.START_LOG, folder / back.START_STATUS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(AT_ONCE)
    if why := back.not_started(job_id):
        said = transport.names(where, f"jobs/{job_id}")
        if not {jobs.LIVE, jobs.END} & {*said}:  # else a node had it, and has refused it or failed
            raise UserError(why)


def cancel(job_ids: Iterable[str]) -> None:
    """Ask the nodes to stop these jobs; what they save goes to the URL, and a later run goes on from it."""
    _stop([job for job_id in job_ids if (job := jobs.noted(job_id)) is not None])


def _stop(found: list[dict]) -> None:
    for job in found:
        jobs.note(job, cancelled=True)
    back.ask_to_stop(found)


def main(argv: list[str]) -> int:
    """Run a command of Snakemake's and return the exit status."""
    command, *arguments = argv
    try:
        if command == "submit":
            script = Path(arguments[-1])
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    job_id = submit(script)
            except UserError as e:  # in the job's own log, too, where `attnprior run` finds it
                write_text(jobs.properties(script)["log"][0], f"error: {e}\n")
                raise
            print(job_id)
        elif command == "status":
            print(back.status(arguments[0]))
        elif command == "cancel":
            cancel(arguments)
    except UserError as e:
        tell(f"error: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
