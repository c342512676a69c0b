"""What the event log costs a job: the time of one event, and when a real training writes them."""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from attnprior.events import EventLog  # noqa: E402
from attnprior.files import canonical_json  # noqa: E402
from attnprior.stages import fetch_dataset, train_student  # noqa: E402
from attnprior.workflow import graph, params  # noqa: E402

EVENTS, EPOCHS, STUDENT = 2000, 4, "random"


def event_times(folder: Path) -> list[float]:
    """Return the seconds that each of EVENTS rows of a usual size took, until it was handed to the system."""
    log = EventLog(folder / "timed.events.jsonl")
    log.start(resume=False)
    row = {f"metric_{k}": 1 / (k + 3) for k in range(8)}
    times = []
    for step in range(EVENTS):
        begin = time.perf_counter()
        log.metrics(step, row)
        times.append(time.perf_counter() - begin)
    return times


def training_events(folder: Path) -> tuple[list[tuple[str, int]], int]:
    """Train a student and return its events, each with the optimizer steps before it, and all steps."""
    from attnprior.train import optim

    settings = params.load(ROOT)
    settings["recipes"]["student"] |= {"epochs": EPOCHS, "warmup_epochs": 0}
    del settings["recipes"]["student"]["warmup_lr"]
    os.chdir(folder)
    common = ["--threads", "1", "--dataset", "digits"]
    data = ["--output", "digits.safetensors", "--run-json", "data.json", "--events", "data.jsonl"]
    one = canonical_json({"datasets.digits": settings["datasets"]["digits"]})
    assert fetch_dataset.main([*common, *data, "--params", one]) == 0

    steps, events = [0], []
    step, append = optim.Optimizer.step, EventLog._append

    def counted_step(self, *args, **kwargs):
        steps[0] += 1
        return step(self, *args, **kwargs)

    def counted_append(self, event):
        events.append((event["event"], steps[0]))
        append(self, event)

    optim.Optimizer.step, EventLog._append = counted_step, counted_append
    outputs = [
        f"--{n}={n}" for n in ("weights", "history", "predictions", "checkpoint", "run-json", "events")
    ]
    keys = graph.student_keys(settings, STUDENT)
    names = ["--student", STUDENT, "--seed", "0", "--data", "digits.safetensors"]
    argv = [*common, *names, *outputs, "--params", params.settings(settings, *keys)]
    with contextlib.redirect_stdout(None):
        assert train_student.main(argv) == 0
    return events, steps[0]


def main() -> int:
    """Print the measurements and return 0 if both targets are met."""
    with tempfile.TemporaryDirectory() as folder:
        times = event_times(Path(folder))
        events, steps = training_events(Path(folder))
        os.chdir(ROOT)
    median, slowest = statistics.median(times), statistics.quantiles(times, n=100)[98]
    print(
        f"one event: median {1e6 * median:.0f} us, 99 of 100 below {1e6 * slowest:.0f} us ({EVENTS} events)"
    )
    rows = [done for kind, done in events if kind == "metrics"]
    per_epoch = steps // EPOCHS
    print(f"training: {EPOCHS} epochs of {per_epoch} steps, events after step {', '.join(map(str, rows))}")
    print(f"others: {', '.join(f'{kind} after step {done}' for kind, done in events if kind != 'metrics')}")
    return 0 if median < 1e-3 and rows == [per_epoch * (k + 1) for k in range(EPOCHS)] else 1


if __name__ == "__main__":
    sys.exit(main())
