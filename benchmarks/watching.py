"""What the live view of `attnprior run` costs: processor time of watching, at two sizes of study."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from rich.console import Console  # noqa: E402
from rich.live import Live  # noqa: E402

from attnprior.workflow import live  # noqa: E402
from attnprior.workflow.engines import Job  # noqa: E402
from attnprior.workflow.progress import Progress  # noqa: E402

SECONDS = 30  # of watching, played without waiting


def cost(waiting: int, running: int) -> float:
    """Return the share of a core: each second one look, one drawing, and an epoch of every running job."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        jobs = [job(Path(folder), k) for k in range(waiting + running)]
        progress = Progress(jobs)
        console = Console(file=nowhere, force_terminal=True, width=100, height=50)
        for one in jobs[:running]:
            append(one, event="start", job=one.key, job_id=one.key, rule=one.rule, total=100, images=200)
        view = Live(
            console=console,
            auto_refresh=False,
            get_renderable=lambda: live.draw(progress.snapshot, time.time(), console),
        )
        spent = 0.0
        with view:
            for second in range(SECONDS):
                for one in jobs[:running]:
                    append(one, event="metrics", step=second + 1, values={"loss": 0.5, "val_top1": 0.5})
                begin = time.process_time()
                progress.update()
                view.refresh()
                spent += time.process_time() - begin
    return spent / SECONDS


def job(folder: Path, k: int) -> Job:
    logs = {"text": "", "events": str(folder / f"{k}.events.jsonl")}
    wildcards = {"dataset": "digits", "student": "random", "seed": str(k)}
    return Job("train_student", wildcards, [], [], str(folder / f"{k}.json"), "{}", logs)


def append(one: Job, **event) -> None:
    with open(one.logs["events"], "a") as f:
        f.write(json.dumps({"time": time.time(), **event}) + "\n")


def main() -> int:
    """Print the shares and return 0 if both are below 2 %."""
    shares = []
    for waiting, running in ((150, 2), (2000, 16)):
        shares.append(cost(waiting, running))
        print(f"{waiting} jobs waiting, {running} running: {100 * shares[-1]:.2f} % of a core")
    return 0 if max(shares) < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
