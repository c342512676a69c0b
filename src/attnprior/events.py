"""The event log of a job: one JSON object a line, appended while the job runs.

`attnprior track` turns these files into tracking runs; a job itself talks to no server.
"""

import json
import math
import os
import sys
import time
from pathlib import Path


class EventLog:
    """Appends events to `path` and flushes each; a log that cannot be written never fails the job."""

    def __init__(self, path):
        self._path = Path(path)
        self._file = None
        self._broken = False

    def start(self, *, resume: bool, **values) -> None:
        """Open the log, emptied unless `resume`, and append the `start` event with `values`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a+b" if resume else "w+b")  # noqa: SIM115 (kept open)
            if resume and self._file.tell() > 0:
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":  # a killed attempt left half a line
                    self._file.write(b"\n")
        except OSError as e:
            self._give_up(e)
        self._append({"event": "start", "time": time.time(), **values})

    def metrics(self, step: int, values: dict) -> None:
        """Append one row of metrics; `step` is the epoch."""
        self._append({"event": "metrics", "time": time.time(), "step": step, "values": values})

    def end(self, status: str, values: dict, artifacts: list[str], error: str | None = None) -> None:
        """Append the `end` event (`status` is "finished" or "failed") and close the log."""
        event = {"event": "end", "time": time.time(), "status": status, "values": values}
        self._append({**event, "artifacts": artifacts, "error": error})
        if self._file is not None:
            try:
                self._file.close()
            except OSError as e:
                self._give_up(e)
            self._file = None

    def _append(self, event: dict) -> None:
        if self._file is None or self._broken:
            return
        try:
            self._file.write(json.dumps(_finite(event), separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as e:
            self._give_up(e)

    def _give_up(self, error: OSError) -> None:
        if not self._broken:
            print(f"warning: {self._path}: events are lost ({error.strerror})", file=sys.stderr)
        self._broken = True


def _finite(value):
    """Return `value` with non-finite floats as None, for JSON has no NaN."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
