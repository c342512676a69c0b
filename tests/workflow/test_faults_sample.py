"""Two kills and two flipped bits of the many in tests/faults, drawn anew each day."""

import datetime
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil

from tests.workflow.project import environment

VICTIMS = {"job": r"attnprior\.stages\.train_student", "snakemake": r"attnprior\.workflow\.scheduler"}
FLIPPED = ("fits/*/*/fit.safetensors", "runs/*/impulse/*/*", "results/*/*.csv", "results/*/figures/*")


def run_and_kill(project, victim: str) -> str:
    """Start a run, kill a process as soon as a student trains, and return what was said on stderr."""
    child = subprocess.Popen(
        [sys.executable, "-m", "attnprior", "run"],
        cwd=project.root,
        env=environment(ATTNPRIOR_CHECKPOINT_SECONDS="0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = project.root / "logs/train_student/digits/copy"
    deadline = time.monotonic() + 200
    while not any(b'"event":"start"' in p.read_bytes() for p in logs.glob("*.jsonl")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    for process in psutil.Process(child.pid).children(recursive=True):
        command = process.cmdline()
        if "-c" not in command[:2] and re.search(VICTIMS[victim], " ".join(command)):
            os.kill(process.pid, signal.SIGKILL)
            break
    said = child.communicate(timeout=200)[1]
    assert child.returncode == 1 and "Traceback" not in said, said
    return said


def test_kills_and_flipped_bits_end_with_the_same_bytes(project, measured):
    seed = datetime.date.today().toordinal()
    rng = random.Random(seed)
    before = project.contents()
    shutil.rmtree(project.root / "runs/digits/copy")
    shutil.rmtree(project.root / "logs/train_student/digits/copy")
    for pattern in rng.sample(FLIPPED, 2):
        path = rng.choice([p for p in sorted(project.root.glob(pattern)) if p.stat().st_size])
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
        print(f"seed {seed}: flipped a bit of byte {at} of {path.relative_to(project.root)}")
    said = run_and_kill(project, "job")
    assert re.search(r"error: train_student/digits/copy/seed\d: .*\(log: logs/train_student", said), said
    shutil.rmtree(project.root / "logs/train_student/digits/copy")
    shutil.rmtree(project.root / "runs/digits/copy", ignore_errors=True)
    assert "snakemake was killed (SIGKILL)" in run_and_kill(project, "snakemake")
    assert "Traceback" not in project.attnprior("run").stderr
    assert project.contents() == before
    measured(f"seed {seed}: a job and Snakemake killed, 2 bits flipped, {len(before)} files compared")
