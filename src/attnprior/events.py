"""The event log of a job: one JSON object a line, appended while the job runs.

`attnprior track` turns these files into tracking runs; a job itself talks to no server.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from attnprior.errors import tell


class EventLog:
    """Appends events to `path`, each at once; a log that cannot be written never fails the job.

    What a full disk keeps out is written before the next event, from the byte where it broke off.
    """

    def __init__(self, path):
        self._path = Path(path)
        self._file: FileIO | None = None
        self._waiting = b""  # what could not be written yet
        self._resume, self._warned = False, False

    def start(self, *, resume: bool, rows: Iterable[tuple[int, dict]] = (), **values) -> None:
        """Open the log, emptied unless `resume`, and append the `start` event with `values`.

        `rows` (step, values) are those of earlier attempts: Snakemake removes the log of a job that it runs
        again. Those that are not there are appended, marked as `filled`, for their time is not known.
        """
        self._resume = resume
        logged = self._steps() if resume and rows else set()
        self._append({"event": "start", "time": time.time(), **values})
        for step, row in rows:
            if step not in logged:
                self.metrics(step, row, filled=True)

    def metrics(self, step: int, values: dict, **marks: bool) -> None:
        """Append one row of metrics, with `marks`; `step` is the epoch."""
        self._append({"event": "metrics", "time": time.time(), "step": step, "values": values, **marks})

    def end(self, status: str, values: dict, artifacts: list[str], error: str | None = None) -> None:
        """Append the `end` event ("finished", "failed" or "stopped": it can go on) and close the log."""
        event = {"event": "end", "time": time.time(), "status": status, "values": values}
        self._append({**event, "artifacts": artifacts, "error": error})
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _append(self, event: dict) -> None:
        self._waiting += json.dumps(_finite(event), separators=(",", ":")).encode() + b"\n"
        try:
            if self._file is None:
                self._file = self._opened()
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as e:
            if not self._warned:
                tell(f"warning: {self._path}: events cannot be written ({e.strerror})")
            self._warned = True

    def _steps(self) -> set[int]:
        """Return the steps whose rows the log holds."""
        found: set[int] = set()
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a killed attempt left half a line
                    event = json.loads(line)
                    if isinstance(event, dict) and event.get("event") == "metrics":
                        found.add(event.get("step", -1))
        return found

    def _opened(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(self._path, "a+" if self._resume else "w+")
        if self._resume and file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a killed attempt left half a line
                self._waiting = b"\n" + self._waiting
        return file


def _finite(value):
    """Return `value` with non-finite floats as None, for JSON has no NaN."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
