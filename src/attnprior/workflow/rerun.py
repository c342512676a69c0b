"""Jobs made again in a scratch folder, with the code and settings of this checkout, by the shipped rules."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnprior.errors import UserError, one_line
from attnprior.workflow import environment
from attnprior.workflow.eventlogs import read_jobs

CODE = ("Snakefile", "params.yaml", "studies", "profiles", "workflow", "src")
POLL = 0.5  # seconds between looks at the running jobs
NOISE = ("Using workflow specific profile", "  File ")  # in Snakemake's log, before and after an error
PATIENCE = 10  # seconds until processes that were told to end are killed


@contextlib.contextmanager
def scratch_folder(parent: str | None, *, keep: bool) -> Iterator[Path]:
    """Yield a new folder below `parent` (the system's temporary folder if None), removed at the end.

    With `keep` it stays. SIGTERM ends the block like Ctrl-C, so that the folder is removed then, too.

    Raises:
        UserError: the folder cannot be made.
    """
    try:
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="attnprior-verify-", dir=parent)).resolve()
    except OSError as e:
        raise UserError(
            f"--scratch {parent or tempfile.gettempdir()}: cannot be written ({e.strerror})"
        ) from e
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _terminated(*_) -> None:
    raise SystemExit(143)


def copy_code(folder: Path) -> None:
    """Copy what the jobs are made by, uncommitted changes included."""
    for name in CODE:
        if Path(name).is_symlink():
            (folder / name).symlink_to(os.readlink(name))
        elif Path(name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".snakemake")
            shutil.copytree(name, folder / name, symlinks=True, ignore=ignored)
        elif name != "studies":  # a checkout may have none
            shutil.copy(name, folder / name)


def place(folder: Path, inputs: Mapping[str, Path]) -> None:
    """Let `folder` see each input under its name in a checkout."""
    for name, source in inputs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(source)


def make(folder: Path, rules: Sequence[str], targets: Sequence[str]) -> None:
    """Make `targets` in `folder` by jobs of `rules` (all if none), and print each job when it is finished.

    Raises:
        UserError: a job failed; its error is named.
    """
    command = [sys.executable, "-m", "attnprior.workflow.scheduler"]
    command += ["--allowed-rules", *rules] if rules else []
    commit = os.environ.get("ATTNPRIOR_COMMIT") or environment.commit(".")
    env = {**os.environ, "ATTNPRIOR_COMMIT": commit, **environment.job_environment(folder)}
    log = folder / "snakemake.log"
    records = [folder / t for t in targets if t.endswith("run.json")]
    with open(log, "w", encoding="utf-8") as out:
        child = subprocess.Popen(
            [*command, "--", *targets],
            cwd=folder,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        shown: set[Path] = set()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
            for path in [r for r in records if r not in shown and r.is_file()]:
                shown.add(path)
                record = json.loads(path.read_text(encoding="utf-8"))
                total = f"{len(records)}"
                done = f"[{len(shown):{len(total)}}/{total}] {record['job']}"
                print(f"{done}  {record['seconds']['total']:.1f} s", flush=True)
            if child.returncode is not None:
                break
    finally:
        _stop(child)
    if child.returncode:
        raise UserError(f"{_error(folder, log)}; look with --keep")


def _stop(child: subprocess.Popen) -> None:
    """End Snakemake and its jobs, which are one process group; nothing of theirs is kept."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        time.sleep(0.1)  # the jobs, too, are gone before their folder is


def _error(folder: Path, log: Path) -> str:
    for path in sorted(folder.glob("logs/**/*.events.jsonl")):
        for job in read_jobs(path):
            if job.end is not None and job.end.get("error"):
                return f"{job.start['job']} failed when made again: {job.end['error']}"
    text = log.read_text(errors="replace").replace(f"{folder}/", "")
    said = [line for line in text.splitlines() if line.strip() and not line.startswith(NOISE)]
    return f"snakemake failed: {one_line(' '.join(said))[:300] or 'no output'}"
