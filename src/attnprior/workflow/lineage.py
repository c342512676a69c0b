"""Which job made a file, and which jobs made what that job read: from the run.json beside the files."""

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from attnprior.errors import UserError
from attnprior.files import digest
from attnprior.source import PREFIX
from attnprior.workflow.commits import Commits
from attnprior.workflow.state import Hashes


@dataclass
class Made:
    """One job as its run.json tells, and how its files compare with what lies here now."""

    name: str
    path: str  # of its run.json
    record: dict[str, Any]
    data: dict[str, str] = field(default_factory=dict)  # input files but code: path -> SHA-256
    code: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def owns(self, path: str) -> bool:
        return path == self.path or path in self.record["outputs"]


class Lineage:
    """The jobs of the working directory, looked up by file; each record is read once."""

    def __init__(self) -> None:
        self._folders: dict[str, list[Made]] = {}
        self._hashes = Hashes()
        self._commits = Commits()

    def producer(self, path: str) -> Made | None:
        """Return the job that wrote `path`, or None if no run.json beside or above it names the file."""
        for folder in list(PurePosixPath(path).parents)[:2]:
            for job in self._in(str(folder)):
                if job.owns(path):
                    return job
        return None

    def _in(self, folder: str) -> list[Made]:
        if folder not in self._folders:
            found = [Path(folder, "run.json"), *sorted(Path(folder).glob("*.run.json"))]
            self._folders[folder] = [job for path in found if (job := _read(path)) is not None]
        return self._folders[folder]

    def chain(self, job: Made, only: set[str] | None = None) -> dict[str, Made]:
        """Return `job` and all jobs behind it by name, judged; of its own inputs only those in `only`."""
        found: dict[str, Made] = {}
        todo = [(job, only)]
        while todo:
            at, chosen = todo.pop()
            if at.name in found:
                continue
            found[at.name] = at
            self._judge(at, chosen)
            for path in at.data:
                source = self.producer(path)
                if source is not None and (chosen is None or path in chosen):
                    todo.append((source, None))
        return found

    def _judge(self, job: Made, chosen: set[str] | None) -> None:
        """Note where the files of `job` are not what it read and wrote."""
        job.problems = []
        for path, wrote in job.record["outputs"].items():
            now = self._hashes.of(path)
            if now is None:
                job.problems.append(f"{path} is not here (`dvc checkout` or `dvc pull`)")
            elif now != wrote:
                job.problems.append(f"{path} was changed after {job.name} wrote it")
        for path, read in job.data.items():
            source = self.producer(path)
            if chosen is not None and path not in chosen:
                continue
            if source is None and path == _local_file(job):
                if self._hashes.of(path) != read:
                    job.problems.append(f"{path} was changed after {job.name} read it, or is not here")
            elif source is None:
                job.problems.append(f"{path}, which {job.name} read, is known to no job")
            elif path in source.record["outputs"] and source.record["outputs"][path] != read:
                job.problems.append(f"{job.name} read another {path} than {source.name} wrote last")
            elif path == source.path and self._hashes.of(path) != read:
                job.problems.append(f"{path} was changed after {job.name} read it")

    def inputs(self, job: Made) -> list[tuple[str, str, Made | None]]:
        """Return (path, SHA-256, the job that made it) of what `job` read, code aside."""
        return [(path, read, self.producer(path)) for path, read in job.data.items()]

    def facts(self, job: Made) -> dict[str, Any]:
        """Return all that is known of a job, ready for JSON; the jobs behind it are named."""
        record = job.record
        return {
            "job": job.name,
            "rule": record["rule"],
            "wildcards": record["wildcards"],
            "record": job.path,
            "settings": json.loads(record["params"]),
            "commit": self._commits.about(record.get("commit"), job.code),
            "code": {"digest": digest(job.code), "files": job.code},
            "inputs": [
                {"path": path, "sha256": read, "job": source.name if source else None}
                for path, read, source in self.inputs(job)
            ],
            "outputs": record["outputs"],
            **{k: record.get(k) for k in ("device", "threads", "versions", "started", "seconds", "attempts")},
            "invocation": record.get("invocation"),
            "problems": job.problems,
        }

    def is_changed(self, job: Made, path: str) -> bool:
        """Return whether `path` is not as `job` wrote it (its own run.json cannot tell of itself)."""
        return path != job.path and self._hashes.of(path) != job.record["outputs"][path]

    def sha256(self, path: str) -> str | None:
        return self._hashes.of(path)


def _local_file(job: Made) -> str | None:
    """Return the file, made by no job, that a teacher was read from."""
    name = f"teachers.{job.record['wildcards'].get('teacher')}"
    teacher = json.loads(job.record["params"]).get(name)
    return teacher.get("path") if isinstance(teacher, dict) else None


def _read(path: Path) -> Made | None:
    """Return the job of a run.json, None if it is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        inputs = record["inputs"].items()
        return Made(
            name=record["job"],
            path=path.as_posix(),
            record=record,
            data={p: h for p, h in inputs if not p.startswith(f"{PREFIX}/")},
            code={p: h for p, h in inputs if p.startswith(f"{PREFIX}/")},
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def local_path(text: str) -> str:
    """Return `text` as a path relative to the working directory.

    Raises:
        UserError: it lies elsewhere, or is no file.
    """
    path = Path(text)
    if path.is_absolute() or ".." in path.parts:
        resolved = path.parent.resolve() / path.name
        if not resolved.is_relative_to(Path.cwd()):
            raise UserError(f"{text}: lies outside of this checkout ({Path.cwd()})")
        path = resolved.relative_to(Path.cwd())
    if path.is_dir():
        raise UserError(f"{text}: is a folder; name a file in it, such as {path.as_posix()}/run.json")
    return path.as_posix()
