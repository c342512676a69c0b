"""The last lines of `attnprior run`: tables, where things are, and what the time went into."""

import os
from collections.abc import Iterable
from pathlib import Path


def print_summary(studies: list[str], records: Iterable[dict], wall: float, status: int) -> None:
    """Print what a run that ended with `status` made; `records` are the run.json of its jobs."""
    for study in studies:
        for table in (Path(f"results/{study}/{name}.md") for name in ("table", "paper")):
            if status == 0 and table.is_file():
                print(f"\n{table.read_text(encoding='utf-8').rstrip()}\n")
    if status == 0:
        print("tables and report:    " + ", ".join(f"results/{s}/" for s in studies))
        print("weights and metrics:  runs/{dataset}/{student}/seed{k}/, teachers/, fits/")
        print(
            "logs:                 logs/    MLflow: attnprior ui    versions: dvc.lock (commit it with git)"
        )
    print(time_split(records, wall))


def time_split(records: Iterable[dict], wall: float) -> str:
    """Return a line that splits the wall time into computing and the rest.

    Computing is the time of the stages' own work, shared over the cores that were busy; the rest
    is process starts (Python, torch), Snakemake, DVC and MLflow.
    """
    records = list(records)
    busy = [r["threads"] * r.get("processes", 1) for r in records]  # older records have no processes
    compute = sum(r["seconds"]["compute"] * n for r, n in zip(records, busy, strict=True))
    startup = sum(r["seconds"]["startup"] * n for r, n in zip(records, busy, strict=True))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    computing = min(wall, compute / cores)
    return (
        f"time: {duration(wall)}; {len(records)} jobs on {cores} cores: computing {duration(computing)},"
        f" engines and start-up {duration(wall - computing)} (process starts {duration(startup / cores)})"
    )


def duration(seconds: float) -> str:
    """Return seconds as "4.2 s" or "3 min 7 s"."""
    return f"{int(seconds // 60)} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.1f} s"
