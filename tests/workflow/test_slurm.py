import math

import pytest

from attnprior.errors import UserError
from attnprior.workflow import failures, slurm
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


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"slurm_partition": "gpus"}, "slurm_partition: no partition 'gpus'; there are gpu, main"),
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
