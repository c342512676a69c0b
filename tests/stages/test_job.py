import json
import os
import signal

import pytest

from attnprior import files
from attnprior.errors import UserError
from attnprior.stages import job as jobs
from attnprior.stages.job import Job, Stage, run_stage
from tests import processes

STAGE = Stage(
    "fetch_dataset", wildcards=("dataset", "seed"), inputs=("data", "extra?", "many*"), outputs=("output",)
)


@pytest.fixture(autouse=True)
def _in_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in jobs.POOLS:
        monkeypatch.setenv(name, "1")
    for name in ("in.txt", "a.txt", "b.txt"):
        (tmp_path / name).write_text(name)


def arguments(params='{"x.y":{"k":1}}', threads="1"):
    return [
        *["--dataset", "digits", "--seed", "3", "--data", "in.txt", "--many", "a.txt", "b.txt"],
        *["--output", "out.txt", "--params", params, "--threads", threads],
        *["--run-json", "run.json", "--events", "logs/e.jsonl"],
    ]


def write(job):
    files.write_text(job.args.output, "result")
    return {"score": 0.5}


def events():
    with open("logs/e.jsonl") as f:
        return [json.loads(line) for line in f]


def test_a_finished_job_records_what_went_in_and_came_out(monkeypatch):
    monkeypatch.setenv("ATTNPRIOR_COMMIT", "abc")
    assert run_stage(STAGE, write, arguments()) == 0
    record = files.read_json("run.json")
    assert record["job"] == "fetch_dataset/digits/seed3" and record["rule"] == "fetch_dataset"
    assert record["wildcards"] == {"dataset": "digits", "seed": 3}
    assert record["params"] == '{"x.y":{"k":1}}'
    assert record["inputs"]["in.txt"] == files.sha256("in.txt") and "b.txt" in record["inputs"]
    assert "src/attnprior/stages/fetch_dataset.py" in record["inputs"]
    assert record["outputs"] == {"out.txt": files.sha256("out.txt")}
    assert record["commit"] == "abc" and record["invocation"] is None
    assert record["threads"] == 1 and record["attempts"] == 1 and record["device"].startswith("cpu (")
    assert record["seconds"]["total"] >= record["seconds"]["compute"] >= 0 and record["max_rss_mb"] > 5
    assert record["seconds"]["cpu"] > 0
    begin, end = events()
    assert begin["event"] == "start" and begin["params"] == {"x.y": {"k": 1}} and begin["attempt"] == 1
    assert begin["params_digest"] == files.digest({"x.y": {"k": 1}})
    assert set(begin["inputs"]) == {"in.txt", "a.txt", "b.txt"}
    assert end["status"] == "finished" and end["values"] == {"score": 0.5}
    assert end["artifacts"] == ["out.txt", "run.json"]


def test_a_user_error_is_one_line_and_leaves_no_run_json(capsys):
    def work(job):
        raise UserError("models.x.y: 3; allowed:\n 1 or 2")

    assert run_stage(STAGE, work, arguments()) == 1
    assert capsys.readouterr().err == "error: models.x.y: 3; allowed: 1 or 2\n"
    assert not os.path.exists("run.json")
    assert events()[-1]["status"] == "failed" and events()[-1]["error"] == "models.x.y: 3; allowed: 1 or 2"


def test_an_error_is_written_in_one_piece_for_processes_share_their_log(monkeypatch):
    written = []
    monkeypatch.setattr(jobs.sys.stderr, "write", written.append)

    def work(_):
        raise UserError("recipes.short: lr is negative; use one above 0")

    assert run_stage(STAGE, work, arguments()) == 1
    assert written == ["error: recipes.short: lr is negative; use one above 0\n"]


def test_a_signal_while_an_error_is_told_does_not_take_its_place(monkeypatch, capsys):
    shown = jobs.one_line

    def told(text):
        signal.raise_signal(signal.SIGTERM)
        return shown(text)

    monkeypatch.setattr(jobs, "one_line", told)

    def work(_):
        raise UserError("recipes.short: lr is negative; use one above 0")

    assert run_stage(STAGE, work, arguments()) == 1
    assert capsys.readouterr().err == "error: recipes.short: lr is negative; use one above 0\n"
    assert events()[-1]["error"].startswith("recipes.short")


def test_any_other_error_shows_its_traceback_and_ends_in_one_line(capsys):
    assert run_stage(STAGE, lambda job: 1 // 0, arguments()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback") and lines[-1].startswith("error: ZeroDivisionError: ")
    assert events()[-1]["status"] == "failed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": "{"}, "--params: not valid JSON"),
        ({"params": "[1]"}, "--params: not a JSON object"),
        (
            {"params": '{"compute":{"device":"cpu","torch_threads":2}}'},
            "--threads 1: compute.torch_threads is 2",
        ),
        ({"params": '{"compute":{"device":"cpu"}}'}, "missing key compute.torch_threads"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(capsys, change, message):
    assert run_stage(STAGE, write, arguments(**change)) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not os.path.exists("out.txt")


def test_a_missing_input_is_named(capsys):
    os.unlink("b.txt")
    assert run_stage(STAGE, write, arguments()) == 1
    assert capsys.readouterr().err.startswith("error: b.txt: cannot be read")


def test_parameters_that_were_not_handed_over_are_named(capsys):
    from attnprior.config import Dataset

    assert run_stage(STAGE, lambda job: job.settings(Dataset, "datasets", "digits"), arguments()) == 1
    assert "--params: no datasets.digits" in capsys.readouterr().err


def test_thread_pools_follow_the_parameters():
    params = '{"compute":{"device":"cpu","torch_threads":2}}'

    def work(job):
        assert [os.environ[name] for name in jobs.POOLS] == ["2", "2", "2"]
        return write(job)

    assert run_stage(STAGE, work, arguments(params, threads="4")) == 0
    assert files.read_json("run.json")["threads"] == 2


@pytest.mark.parametrize(("device", "message"), [("tpu", "allowed: cpu, cuda"), ("cuda", "finds no GPU")])
def test_a_device_that_is_not_there_is_a_user_error(monkeypatch, device, message):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    with pytest.raises(UserError, match=message):
        jobs.import_torch(threads, device)


def test_rows_become_events_without_their_counters(capsys):
    def work(job: Job):
        job.row({"epoch": 2, "step": 10, "loss": 0.25})
        return write(job)

    run_stage(STAGE, work, arguments())
    assert events()[1]["step"] == 2 and events()[1]["values"] == {"loss": 0.25}
    assert "epoch 2: loss 0.25" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_without_a_state_to_save_ends_its_log_and_exits_with_the_signal(tmp_path, number):
    code = (
        "import sys, time\nfrom attnprior.stages.job import Stage, run_stage\n"
        "def work(job):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "stage = Stage('fetch_dataset', ('dataset', 'seed'), ('data', 'many*'), ('output',))\n"
        "sys.exit(run_stage(stage, work, sys.argv[1:]))\n"
    )
    process = processes.start(["-c", code, *arguments()])
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 128 + number and error == f"error: terminated ({number.name})\n"
    assert events()[-1]["status"] == "failed"


def test_stages_import_nothing_heavy_before_their_arguments_are_read():
    names = ("fetch_dataset", "pretrain_teacher", "fit_impulse", "train_student")
    code = (
        f"import sys\nfor n in {names!r}:\n    __import__('attnprior.stages.' + n)\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'torch', 'numpy', 'sklearn', 'scipy', 'mlflow', 'dvc', 'snakemake'}))"
    )
    assert processes.output(code) == "\n"
