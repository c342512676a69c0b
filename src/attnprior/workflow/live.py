"""What `attnprior run` shows while jobs run: one view that renews itself on a terminal, lines elsewhere."""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from attnprior.errors import tell
from attnprior.workflow.engines import Job
from attnprior.workflow.progress import Progress, Row, Snapshot

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ECHO = (
    4  # columns kept free at the right, where the terminal shows keys such as ^C; a line more would be lost
)
NARROW = 50  # columns below which loss and images/s are left out
FIXED = 4  # lines beside those of jobs: two of head, the titles, the count of those left out


def view(progress: Progress) -> "Lines | Live":
    """Return the view that fits where the output goes."""
    return Live(progress) if on_terminal() else Lines(progress)


def on_terminal() -> bool:
    """Return whether the output is a terminal that can be drawn on (not a pipe, CI or TERM=dumb)."""
    dumb = os.environ.get("TERM", "dumb").lower() in ("dumb", "unknown", "")
    return sys.stdout.isatty() and not dumb and not os.environ.get("CI")


class Lines:
    """A line for each job that finished, and for each that failed."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._shown = progress, 0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def show(self, finished: list[Job], failed: list[tuple[Job, str]]) -> None:
        """Print what is new."""
        total = self._progress.snapshot.total
        for job in finished:
            self._shown += 1
            seconds = self._progress.done[job.key]["seconds"]["total"]
            print(f"[{self._shown:{len(str(total))}}/{total}] {job.key}  {seconds:.1f} s")
        sys.stdout.flush()
        for job, error in failed:
            tell(error_line(job, error))

    def stopping(self) -> None:
        """Take note of Ctrl-C; Snakemake speaks for itself in its log."""


class Live:
    """The view on a terminal: counts, times, and a line for each running job; errors stay above it."""

    def __init__(self, progress: Progress) -> None:
        from rich import live
        from rich.console import Console

        self._progress = progress
        self._instead: str | None = None  # of the time left, once that is not to be foreseen
        self._console = Console(highlight=False)
        self._size = self._console.size
        self._said: list[str] = []
        # A thread draws, so that times go on while DVC records.
        self._live = live.Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=1,
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> "Live":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._instead = ""
        self._live.__exit__(*error)

    def show(self, finished: list[Job], failed: list[tuple[Job, str]]) -> None:
        """Print errors above the view, and draw it anew where the terminal has shrunk."""
        for job, error in failed:
            self._said.append(error_line(job, error))
            tell(self._said[-1])
        before, self._size = self._size, self._console.size
        if self._size.width < before.width or self._size.height < before.height:
            self._console.clear()  # the old lines may have wrapped, and nobody knows where they end
            self._live.refresh()  # printing repeats the last drawing, which must be one of this size
            for said in self._said[-self._size.height // 2 :]:
                self._console.print(said, markup=False)

    def stopping(self) -> None:
        """Say from now on that the run is being stopped."""
        self._instead = ", stopping"

    def _draw(self) -> "RenderableType":
        return draw(self._progress.snapshot, time.time(), self._console, self._instead)


def error_line(job: Job, error: str) -> str:
    """Return the line that names a failed or stopped job, why it is, and its log."""
    return f"error: {job.key}: {error} (log: {job.logs['text']})"


def draw(now_is: Snapshot, now: float, console: "Console", instead: str | None = None) -> "RenderableType":
    """Return the view of `now_is` at time `now` for a console of any size; `instead` of the time left."""
    from rich.console import Group
    from rich.text import Text

    width, room = max(1, console.size.width - ECHO), max(0, console.size.height - FIXED - 1)
    counts = f"{now_is.done} of {now_is.total} jobs done, {now_is.running} running, {now_is.waiting} waiting"
    head = Text(counts, style="bold")
    head.append(f", {now_is.failed} failed", style="bold red" if now_is.failed else "bold")
    if now_is.stopped:
        head.append(f", {now_is.stopped} stopped", style="bold")
    times = f"{short(now - now_is.begun)} elapsed"
    if instead is not None:
        times += instead
    elif now_is.ends_at is not None and now_is.done < now_is.total:
        times += f", about {short(max(0.0, now_is.ends_at - now))} left"
    lines = [head, Text(f"{bar(now_is.done / now_is.total, console)} {times}")]
    if now_is.rows and room:
        lines.append(Text(titles(width), style="dim"))
        lines += [Text(line(row, now, width)) for row in now_is.rows[:room]]
        if len(now_is.rows) > room:
            lines.append(Text(f"and {len(now_is.rows) - room} more", style="dim"))
    for text in lines:
        text.truncate(width)
        text.no_wrap, text.overflow = True, "crop"  # if the terminal shrinks before it is drawn anew
    return Group(*lines)


def bar(part: float, console: "Console") -> str:
    """Return a bar of which `part`, 0 to 1, is full."""
    full, rest = "█░" if console.encoding.startswith("utf") else "#."
    length = 20 if console.size.width >= 80 else 10
    return full * int(part * length) + rest * (length - int(part * length))


def titles(width: int) -> str:
    """Return the heads of the columns of `line`."""
    return _columns("running", ("epoch", "loss", "val %", "img/s", "left"), width)


def line(row: Row, now: float, width: int) -> str:
    """Return the line of a running job; a name that does not fit loses its beginning."""
    at = "" if row.total is None else f"{row.step}/{row.total}"
    cells = (
        at,
        "" if row.loss is None else f"{row.loss:.4g}",
        "" if row.accuracy is None else f"{100 * row.accuracy:.1f}",
        "" if row.images_per_second is None else f"{row.images_per_second:.0f}",
        "" if row.ends_at is None else short(max(0.0, row.ends_at - now)),
    )
    return _columns(row.key, cells, width)


def _columns(name: str, cells: tuple[str, ...], width: int) -> str:
    widths = (11, 7, 5, 7, 7) if width >= 90 else (7, 6, 5, 6, 6)
    shown = [
        f"{c:>{w}}"
        for k, (c, w) in enumerate(zip(cells, widths, strict=True))
        if width >= NARROW or k in (0, 2, 4)
    ]
    right = " ".join(shown)
    room = max(8, min(width - len(right) - 1, 60))
    cut = name if len(name) <= room else ".." + name[2 - room :]
    return f"{cut:{room}} {right}"


def short(seconds: float) -> str:
    """Return seconds as "42 s", "3:07" (minutes) or "2:03:07" (hours)."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
