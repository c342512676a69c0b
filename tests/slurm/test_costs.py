"""What the cluster costs: the process that submits, the start of a job on its node, many short jobs."""

import os
import signal
import statistics
import sys
import time

import psutil
import pytest

from tests.slurm.conftest import Background, copied, events, student_of

pytestmark = pytest.mark.slurm
SHORT, LONG = 60, 100  # jobs
WINDOW = 60.0  # seconds
START = 8.0  # seconds at most of our own in the start of a job, beside the import of torch
HEAD = 0.05  # of a core at most, for 100 jobs
ARRAYS = ("--slurm-array-jobs", "train_student", "--jobs", "200", "--until", "train_student")


def many(blank, root, count: int, epochs: int):
    """Return a project whose study is one arm of `count` seeds."""
    project = copied(blank, root)
    project.put("studies.digits.seeds", list(range(count)))
    panel = project.params()["studies"]["digits"]["panels"]["model_i"]
    project.put("studies.digits.panels.model_i", {**panel, "arms": [panel["baseline"]]})
    project.put("recipes.student.epochs", epochs)
    project.attnprior("sync")
    return project


def used(process: psutil.Process) -> float:
    """Return the processor seconds of a process and all that it started, ended ones included."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(p.cpu_times()[:4]) for p in every)


def test_a_job_starts_soon_on_its_node(whole, measured):
    say = f"{sys.executable} -X importtime -c 'import torch' 2>&1 | tail -1 | cut -d'|' -f2"
    torch = float(whole.slurm.ask("srun", "-n1", "sh", "-c", say)) / 1e6
    of_snakemake, own = [], []
    for number, comment in whole.jobs.items():
        name = student_of(comment)
        if name is None:
            continue
        startup = whole.record(f"runs/{name}/run.json")["seconds"]["startup"]
        first = events(whole, f"train_student/{name}")[0]["time"]
        of_snakemake.append(first - startup - whole.slurm.began(number))
        own.append(startup - torch)
    assert len(own) >= 6
    middle = statistics.median
    measured(
        f"start of {len(own)} jobs: Slurm and Snakemake {middle(of_snakemake):.1f} s, torch {torch:.1f} s,"
        f" stage {middle(own):.1f} s (largest {max(own):.1f} s)"
    )
    assert middle(own) < START


def test_waiting_for_a_hundred_jobs_costs_the_submitting_process_little(blank, tmp_path, measured):
    project = many(blank, tmp_path / "project", LONG, epochs=100000)
    run = Background(project, *ARRAYS, "--seconds-between-status-checks", "10")
    run.until(lambda: len(project.slurm.jobs()) == LONG and run.training())
    time.sleep(20)
    head = psutil.Process(run.process.pid)
    before, begin = used(head), time.monotonic()
    time.sleep(WINDOW)
    share = (used(head) - before) / (time.monotonic() - begin)
    os.kill(run.process.pid, signal.SIGTERM)
    run.finish(120)
    measured(f"waiting for {LONG} jobs takes {100 * share:.1f} % of a core")
    assert share < HEAD * LONG / 100


def test_sixty_short_jobs_go_through_arrays(blank, tmp_path, measured):
    project = many(blank, tmp_path / "project", SHORT, epochs=2)
    begin, before = time.monotonic(), set(project.slurm.jobs("all"))
    run = Background(project, *ARRAYS)
    head, took = psutil.Process(run.process.pid), 0.0
    while run.process.poll() is None:
        try:
            took = max(took, used(head))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.5)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    new = set(project.slurm.jobs("all")) - before
    arrays = {n.partition("_")[0] for n in new if "_" in n}
    assert len([n for n in new if "_" in n]) == SHORT
    assert len(list((project.root / "runs/digits").glob("*/seed*/run.json"))) == SHORT
    measured(
        f"{SHORT} trainings in {len(arrays)} arrays: {time.monotonic() - begin:.0f} s by the clock,"
        f" {took:.0f} s of the processor for the submitting processes"
    )
