import math
import shutil

import pytest

from attnprior.errors import UserError
from attnprior.workflow import batch, failures, scheduler, slurm
from attnprior.workflow.slurm import Partition, Request

KNOWN = {
    "main": Partition(240, 64000, frozenset()),
    "gpu": Partition(math.inf, 500000, frozenset({"a100", "h100"})),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10:00", 10),
        ("4:00:00", 240),
        ("1-00:00:00", 1440),
        ("2-12:30:30", 2 * 1440 + 750.5),
        ("0:30", 0.5),
        ("infinite", math.inf),
        ("n/a", math.inf),
    ],
)
def test_time_limits_are_read_as_slurm_writes_them(text, expected):
    assert slurm.minutes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", set()),
        ("gpu:2", {""}),
        ("gpu:a100:4(S:0-1)", {"a100"}),
        ("gpu:a100:4,gpu:1g.5gb:7,tmpdisk:200", {"a100", "1g.5gb"}),
        ("tmpdisk:gpu", set()),
    ],
)
def test_gpu_types_are_read_from_generic_resources(text, expected):
    assert slurm.gpu_types(text) == expected


def judge(**resources):
    slurm.check([Request("train_student/digits/copy/seed0", 2, resources)], KNOWN, "main")


def test_what_fits_passes():
    judge(runtime=240, mem_mb=64000, gpu=0)
    judge(slurm_partition="gpu", gpu=1, gpu_model="h100", runtime=9999)
    judge(slurm_partition="gpu", gres="gpu:2")
    judge(slurm_partition="main,gpu", gpu=1, runtime=9999)  # one of them can
    judge(slurm_partition="gpu,main", gpu=1)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"slurm_partition": "gpus"}, "slurm_partition: no partition 'gpus'; there are gpu, main"),
        ({"slurm_partition": "main,gpus"}, "slurm_partition: no partition 'gpus'; there are gpu, main"),
        ({"slurm_partition": "main,gpu", "mem_mb": 500001}, "partition 'main' has 64000"),
        ({"runtime": 241}, "seed0 (attempt 2) asks for 241 minutes, partition 'main' has 240; set runtime"),
        ({"mem_mb": 64001}, "asks for 64001 MB of memory, partition 'main' has 64000"),
        ({"gpu": 1}, "asks for a GPU, partition 'main' has none; set slurm_partition"),
        (
            {"slurm_partition": "gpu", "gpu": 1, "gpu_model": "v100"},
            "asks for a GPU of type 'v100', partition 'gpu' has a100, h100",
        ),
        ({"slurm_partition": "gpu", "gres": "gpu:v100:1"}, "of type 'v100'"),
    ],
)
def test_what_slurm_would_queue_for_ever_is_refused_in_one_line(resources, message):
    with pytest.raises(UserError) as error:
        judge(**resources)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_partition_and_no_default_is_refused():
    with pytest.raises(UserError, match="there are gpu, main"):
        slurm.check([Request("job", 1, {})], KNOWN, None)


def test_a_missing_command_names_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="sinfo cannot be run .*login node"):
        slurm.partitions()


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Commands of Slurm with a job of the run `abc` in the queue; a folder that may hold Snakemake's logs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / scheduler.LOGS).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name, script in {
        "squeue": 'echo "squeue $*" >> asked; case "$*" in *"--name abc"*) [ -e gone ] || echo 7;; esac',
        "scancel": 'echo "scancel $*" >> asked; touch gone',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def log_of(root, name, text):
    (root / scheduler.LOGS / f"{name}.log").write_text(text)


def test_what_a_killed_run_left_in_the_queue_is_cancelled_though_other_runs_came_after(queue, capsys):
    log_of(queue, "20260101-000000-a", "SLURM run ID: old\n")
    log_of(queue, "20260102-000000-b", "Building DAG of jobs...\nSLURM run ID: abc\n")
    log_of(queue, "20260103-000000-c", "Building DAG of jobs...\n")  # on this machine
    batch.sweep_earlier()
    said = capsys.readouterr().err
    assert said == "attnprior: 1 jobs of a killed run left in Slurm's queue are cancelled\n"
    assert "scancel --name abc" in (queue / "asked").read_text()
    batch.sweep_earlier()
    assert capsys.readouterr().err == ""


def test_slurm_is_not_asked_without_a_run_that_used_it_or_without_its_commands(queue, monkeypatch):
    log_of(queue, "20260103-000000-c", "Building DAG of jobs...\n")
    batch.sweep_earlier()
    log_of(queue, "20260104-000000-d", "SLURM run ID: abc\n")
    shutil.rmtree(queue / "bin")
    monkeypatch.setenv("PATH", str(queue / "bin"))
    batch.sweep_earlier()
    assert not (queue / "asked").exists()


def test_a_log_without_a_run_of_slurm_leaves_nothing_to_cancel(tmp_path):
    (tmp_path / "log").write_text("Building DAG of jobs...\n")
    assert slurm.cancel_left(tmp_path / "log") == 0


LOG = """Error in rule train_student:
    message: {message}
    jobid: 4
    output: runs/a/weights.safetensors, runs/a/run.json
    log: logs/a.log
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "SLURM sbatch failed. The error message was 'sbatch: error: Invalid account'.\n call: x",
            "Slurm refused it: sbatch: error: Invalid account",
        ),
        ("SLURM-job '7' failed, SLURM status is: 'TIMEOUT'. Detailed", "Slurm ended job 7: TIMEOUT"),
        ("SLURM-job '7' failed, SLURM status is: 'FAILED'. Detailed", ""),  # its own log says more
        ("None", ""),
    ],
)
def test_what_slurm_said_of_a_failed_job_is_found_in_the_log(tmp_path, message, expected):
    (tmp_path / "log").write_text(LOG.format(message=message))
    assert failures._failed_outputs(tmp_path / "log") == dict.fromkeys(
        ["runs/a/weights.safetensors", "runs/a/run.json"], expected
    )
