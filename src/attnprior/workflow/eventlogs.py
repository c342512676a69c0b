"""What the event logs tell of each job, whatever state a kill left them in."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RATE = "images_per_second"  # a metric that no job logs
HEAD = 64  # bytes at the begin of a log that tell it from another: they hold the time of its first event


@dataclass
class LoggedJob:
    """All events of one job id, over every attempt that resumed it."""

    path: Path
    job_id: str
    events: list[dict] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)  # as read, one per event
    replaced: bool = False  # a later attempt started afresh below another id
    filled: bool = False  # rows of its history.csv stand for lost ones
    torn: int = 0  # a line of the log (from 1) that is no event, and that no kill has left

    @property
    def start(self) -> dict:
        """The first `start` event."""
        return self.events[0]

    @property
    def latest_start(self) -> dict:
        return next(e for e in reversed(self.events) if e["event"] == "start")

    @property
    def resumed(self) -> bool:
        """Whether an attempt went on with another's state; the log need not have all epochs of the other."""
        return self.latest_start.get("attempt", 1) > 1

    @property
    def end(self) -> dict | None:
        """The `end` event, if the newest attempt has one."""
        for event in reversed(self.events):
            if event["event"] == "end":
                return event
            if event["event"] == "start":
                return None
        return None

    def status(self, active: bool) -> str:
        """Return MLflow's status; `active` says that jobs may be running."""
        if self.end is not None:
            # What was stopped with its state saved may go on, as what was killed; MLflow has no word for it.
            return {"finished": "FINISHED", "stopped": "KILLED"}.get(str(self.end.get("status")), "FAILED")
        return "RUNNING" if active and not self.replaced else "KILLED"

    def fingerprint(self, lines: int) -> str:
        """Return a text that names the first `lines` lines."""
        return f"{lines}:{hashlib.sha256(b''.join(self.lines[:lines])).hexdigest()[:16]}"

    def known_lines(self, fingerprint: str) -> int | None:
        """Return how many lines `fingerprint` names, or None if the log does not begin with them."""
        text = fingerprint.partition(":")[0]
        lines = int(text) if text.isdecimal() else -1
        return lines if 0 <= lines <= len(self.lines) and self.fingerprint(lines) == fingerprint else None

    def points(self, first_line: int) -> Iterator[tuple[str, float, int, int]]:
        """Yield (metric, value, time in ms, step) of the lines from `first_line` on.

        Of a step that a resumed attempt repeats, the first record counts. Final values are named
        `final/METRIC`, at the last step. A value that was not finite is NaN. `images_per_second`
        follows from the times of two rows of one attempt, not from those of `event_check.check`.
        """
        seen: set[tuple[str, int]] = set()
        step, before, images = 0, None, None
        for number, event in enumerate(self.events):
            if event["event"] == "start":
                before, images = None, event.get("images")
                continue
            prefix = "final/" if event["event"] == "end" else ""
            step = event.get("step", step)
            values = event.get("values", {})
            if event["event"] == "metrics" and not event.get("filled"):
                if before is not None and images is not None:
                    steps, seconds = step - before["step"], event["time"] - before["time"]
                    if steps > 0 and seconds > 0:
                        values = {**values, RATE: images * steps / seconds}
                before = event
            for key, value in values.items():
                name = prefix + _name(key)
                if (name, step) in seen or not isinstance(value, int | float | None):
                    continue
                seen.add((name, step))
                if number >= first_line:
                    yield name, math.nan if value is None else float(value), milliseconds(event), step


def read_jobs(path: Path) -> list[LoggedJob]:
    """Return the jobs of an event log in the order of their starts.

    A last line without its end is still being written and waits for the next reading; a line that is
    no event (a kill cut it) is passed over.
    """
    jobs: dict[str, LoggedJob] = {}
    current: LoggedJob | None = None
    content = path.read_bytes()
    odd, torn = 0, 0
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        event = _event(line)
        if event is None:
            odd = odd or number
            if number == len(lines) and line.endswith(b"}\n"):
                torn = torn or odd
            continue
        if odd and event["event"] != "start":  # a kill leaves half a line, and the next attempt starts
            torn = torn or odd
        odd = 0
        if event["event"] == "start":
            current = jobs.setdefault(event["job_id"], LoggedJob(path, event["job_id"]))
        if current is not None:
            current.events.append(event)
            current.lines.append(line)
    for job in jobs.values():
        job.replaced, job.torn = job is not current, torn
    return list(jobs.values())


class Tail:
    """Reads what is appended to an event log, each line once; a log begun anew is read from its start."""

    def __init__(self, path: Path | str, *, skip: bool = False) -> None:
        """Follow `path`, which need not exist yet; with `skip` what it holds now is passed over."""
        self._path, self._offset, self._head = path, 0, b""
        self._state: tuple[int, int] | None = None  # size and time stamp when last read
        if skip:
            with contextlib.suppress(OSError), open(path, "rb") as f:
                self._head = f.read(HEAD)
                self._offset = f.seek(0, os.SEEK_END)

    def read(self) -> list[dict]:
        """Return the events since the last call; a line without its end waits for the next."""
        try:
            stat = os.stat(self._path)
            state = (stat.st_size, stat.st_mtime_ns)
            if state == self._state:
                return []
            with open(self._path, "rb") as f:
                head = f.read(HEAD)
                if stat.st_size < self._offset or not head.startswith(self._head):
                    self._offset = 0
                f.seek(self._offset)
                new = f.read()
        except OSError:
            return []
        self._state, self._head = state, head
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> dict | None:
    try:
        event = json.loads(line)
        good = isinstance(event["time"], int | float) and event["event"] in ("start", "metrics", "end")
        if event["event"] == "start":
            good = good and all(isinstance(event[k], str) for k in ("job", "job_id", "rule"))
        if event["event"] == "metrics":
            good = good and isinstance(event["step"], int)
        return event if good and isinstance(event.get("values", {}), dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def milliseconds(event: dict) -> int:
    """Return the time of an event in the unit of MLflow."""
    return round(1000 * event["time"])


def _name(key: str) -> str:
    """Return `key` with what MLflow allows in a metric's name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. :/") else "_" for c in key)[:240]
