import json
import os
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from attnprior.workflow import gpu_slots
from tests import processes

PRINT = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv(gpu_slots.FOLDER, str(tmp_path / "locks"))
    return tmp_path / "locks"


class Holder:
    """A job that holds a slot until it is told to end; `gpu` waits until it has one."""

    def __init__(self, gpus, each, stage="train", shared=1):
        recipe = {"accumulate": 8, "processes": shared}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "attnprior.workflow.gpu_slots",
                gpus,
                str(each),
                "train,fit",
                "--",
                sys.executable,
                "-c",
                PRINT,
                f"attnprior.stages.{stage}",
                "--params",
                json.dumps({"recipes.r": recipe}),
            ],
            env=processes.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def gpu(self):
        self.device, self.pid = self.process.stdout.readline().split()
        return self.device

    def end(self):
        self.process.communicate("", timeout=60)


@pytest.fixture
def holders(locks):
    started = []

    def start(*args):
        started.append(Holder(*args))
        return started[-1]

    yield start
    for holder in started:
        if holder.process.poll() is None:
            holder.process.kill()
        holder.process.communicate()


def test_jobs_see_one_gpu_each(holders):
    jobs = [holders("0,1,2", 1) for _ in range(3)]
    assert sorted(job.gpu() for job in jobs) == ["0", "1", "2"]


def test_the_job_is_the_process_that_took_the_slot(holders):
    job = holders("0", 1)
    job.gpu()
    assert int(job.pid) == job.process.pid  # signals to it reach the job


def test_a_stage_without_gpu_takes_no_slot(holders, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    assert holders("0", 1).gpu() == "0"
    assert holders("0", 1, "evaluate").gpu() == "7,8"


def test_slots_are_spread_before_a_gpu_is_shared(holders):
    first = [holders("0,1", 2), holders("0,1", 2)]
    assert sorted(job.gpu() for job in first) == ["0", "1"]
    second = [holders("0,1", 2), holders("0,1", 2)]
    assert sorted(job.gpu() for job in second) == ["0", "1"]


def test_processes_of_a_training_get_a_gpu_each_and_two_trainings_do_not_wait_for_each_other(holders):
    one, two = holders("0,1,2", 1, "train", 2), holders("0,1,2", 1, "train", 2)
    time.sleep(1.5)  # both look for two of three GPUs: one gets them, the other takes none meanwhile
    small = holders("0,1,2", 1)
    free = small.gpu()
    ready = select.select([one.process.stdout, two.process.stdout], [], [], 60)[0]
    first, second = (one, two) if one.process.stdout in ready else (two, one)
    assert sorted([*first.gpu().split(","), free]) == ["0", "1", "2"]
    first.end()
    assert sorted([*second.gpu().split(","), free]) == ["0", "1", "2"]


def test_more_processes_than_gpus_are_one_line(locks):
    with pytest.raises(gpu_slots.UserError, match=r"processes 3, and there are 2 GPUs \(0, 1\); lower it"):
        gpu_slots.take(["0", "1"], 4, locks, 3)


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_a_job_that_is_gone_gives_its_gpu_back(holders, locks, how):
    job = holders("3", 1)
    assert job.gpu() == "3"
    waiting = holders("3", 1)
    time.sleep(0.5)
    assert waiting.process.poll() is None
    if how is None:
        job.end()
    else:
        job.process.send_signal(how)
    assert waiting.gpu() == "3"


def test_names_of_devices_may_be_uuids_of_parts(locks):
    name = "MIG-GPU-1/2/0"
    assert gpu_slots.take([name], 1, locks) == [name]


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gpu_slots.UserError, match="file.*ATTNPRIOR_GPU_SLOTS"):
        gpu_slots.take(["0"], 1, tmp_path / "file")


def test_visible_gpus_are_those_of_the_environment():
    assert gpu_slots.visible({"CUDA_VISIBLE_DEVICES": "1, 3"}) == ["1", "3"]
    assert gpu_slots.visible({"CUDA_VISIBLE_DEVICES": ""}) == []


@pytest.mark.parametrize(("jobs", "gpus", "slots"), [(1, 1, 1), (8, 8, 1), (8, 4, 2), (5, 4, 2), (1, 8, 1)])
def test_slots_of_a_gpu_hold_all_jobs(jobs, gpus, slots):
    assert gpu_slots.each(jobs, gpus) == slots


def workflow(gpu, nodes=None, main=True):
    resources = {"_nodes": SimpleNamespace(value=nodes), "gpu": SimpleNamespace(value=gpu)}
    rules = [
        SimpleNamespace(name=name, resources={"gpu": SimpleNamespace(raw=raw)})
        for name, raw in {"train": 1, "evaluate": 0}.items()
    ]
    rules.append(SimpleNamespace(name="all", resources={}))
    return SimpleNamespace(global_resources=resources, is_main_process=main, rules=rules)


def test_commands_get_a_slot_only_where_gpus_of_this_machine_are_counted(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    expected = "set -euo pipefail; python -m attnprior.workflow.gpu_slots 0,1 2 train -- "
    assert gpu_slots.prefix(workflow(4), "cuda") == expected
    assert gpu_slots.prefix(workflow(4), "cpu") is None
    assert gpu_slots.prefix(workflow(None), "cuda") is None
    assert gpu_slots.prefix(workflow(4, nodes=50), "cuda") is None  # a batch system hands out GPUs
    assert gpu_slots.prefix(workflow(1, main=False), "cuda") is None  # inside one of its jobs


def test_no_gpu_is_one_line(monkeypatch):
    from snakemake.exceptions import WorkflowError

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(WorkflowError, match="no GPU is visible"):
        gpu_slots.prefix(workflow(1), "cuda")


def test_a_number_of_jobs_that_would_wait_for_ever_is_one_line(monkeypatch):
    from snakemake.exceptions import WorkflowError

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(WorkflowError, match="--resources gpu=0: .*1 or more"):
        gpu_slots.prefix(workflow(0), "cuda")
    assert gpu_slots.prefix(workflow(0), "cpu") is None
    assert gpu_slots.prefix(workflow(0, nodes=50), "cuda") is None


SNAKEFILE = """
rule all:
    input: expand("{i}.txt", i=range(4)), "cpu.txt"
rule job:
    output: "{i}.txt"
    resources: gpu=1
    shell: "python -c 'import os, time; time.sleep(1); print(os.environ[\\"CUDA_VISIBLE_DEVICES\\"])'"
        " attnprior.stages.job > {output}"
rule other:
    output: "cpu.txt"
    resources: gpu=0
    shell: "python -c 'import os; print(os.environ[\\"CUDA_VISIBLE_DEVICES\\"])' attnprior.stages.other"
        " > {output}"
ruleorder: other > job
"""
PREFIX = """
from attnprior.workflow import gpu_slots
if slot := gpu_slots.prefix(workflow, "cuda"):
    shell.prefix(slot)
"""


def snakemake(folder, *args):
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "4", *args],
        cwd=folder,
        env={**processes.environment(CUDA_VISIBLE_DEVICES="5,7"), "PATH": path},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.workflow
def test_snakemake_gives_each_job_one_gpu_and_records_the_same_as_without(tmp_path, locks):
    (tmp_path / "Snakefile").write_text(SNAKEFILE + PREFIX)
    snakemake(tmp_path, "--resources", "gpu=4", "--quiet", "all")
    seen = [(tmp_path / f"{i}.txt").read_text().strip() for i in range(4)]
    assert sorted(seen) == ["5", "5", "7", "7"]
    assert (tmp_path / "cpu.txt").read_text().strip() == "5,7"
    assert "Nothing to be done" in snakemake(tmp_path, "-n")
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    assert "Nothing to be done" in snakemake(tmp_path, "-n")
