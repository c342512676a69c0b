"""Currency by content: settings, inputs and outputs against the record beside the files."""

import json
import os
from pathlib import Path

import pytest

from attnprior.files import sealed, sha256
from attnprior.workflow.engines import Job
from attnprior.workflow.state import Hashes, downstream, stale_because


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "code.py", "weights", "history"):
        (tmp_path / name).write_text(name)
    made = Job(
        rule="train_student",
        wildcards={"student": "copy", "dataset": "digits", "seed": "0"},
        inputs=["data", "code.py"],
        outputs=["weights", "history", "run.json"],
        run_json="run.json",
        params='{"a":1}',
        logs={},
    )
    record = {
        "params": made.params,
        "inputs": {p: sha256(p) for p in made.inputs},
        "outputs": {p: sha256(p) for p in made.outputs if p != "run.json"},
    }
    (tmp_path / "run.json").write_text(json.dumps(sealed(record)))
    return made


def test_a_job_is_named_by_rule_data_set_student_and_seed(job):
    assert job.key == "train_student/digits/copy/seed0"


def test_what_was_just_made_is_current(job):
    assert stale_because(job, Hashes()) is None


def test_time_stamps_and_file_modes_do_not_matter(job):
    for name in ("data", "code.py", "weights"):
        os.utime(name, (1, 1))
    os.chmod("weights", 0o444)
    assert stale_because(job, Hashes()) is None


@pytest.mark.parametrize("name", ["data", "code.py"])
def test_changed_input_is_named(job, name):
    hashes = Hashes()
    assert stale_because(job, hashes) is None
    with open(name, "a") as f:
        f.write("x")
    assert stale_because(job, hashes) == f"changed {name}"


def test_one_flipped_bit_in_an_output_is_seen_although_size_is_equal(job):
    with open("weights", "r+b") as f:
        f.write(b"W")
    assert stale_because(job, Hashes()) == "damaged weights"


def test_changed_parameters_missing_files_and_other_inputs_are_seen(job):
    job.params = '{"a":2}'
    assert stale_because(job, Hashes()) == "changed parameters"
    job.params = '{"a":1}'
    job.inputs.append("weights")
    assert stale_because(job, Hashes()) == "other set of inputs"
    os.unlink("history")
    assert stale_because(job, Hashes()) == "missing history"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"params": "x"}'])
def test_an_unreadable_record_means_stale(job, content):
    with open("run.json", "w") as f:
        f.write(content)
    assert stale_because(job, Hashes()) is not None


def test_downstream_holds_the_stale_and_all_that_follow_in_order():
    def make(name, *upstream):
        return Job(name, {}, [], [], "", "", {}, upstream=list(upstream))

    data = make("data")
    teacher = make("teacher", data)
    fit = make("fit")
    student = make("student", data, teacher)
    other = make("other", data, fit)
    table = make("table", student, other)
    jobs = [data, fit, teacher, other, student, table]
    assert [j.rule for j in downstream(jobs, {"teacher"})] == ["teacher", "student", "table"]
    assert [j.rule for j in downstream(jobs, {"fit"})] == ["fit", "other", "table"]
    assert downstream(jobs, set()) == []


def test_a_record_changed_anywhere_is_damaged(job):
    record = json.loads((path := Path("run.json")).read_text())
    for key in ("outputs", "digest", "device"):
        path.write_text(json.dumps({**record, key: "x"}))
        assert stale_because(job, Hashes()) in ("damaged run.json", "damaged weights", "unreadable run.json")
    path.write_text(json.dumps({k: v for k, v in record.items() if k != "digest"}))
    assert stale_because(job, Hashes()) == "unreadable run.json"
