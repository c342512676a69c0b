"""What is sent to nodes without a shared file system, and what is said of failures on the way."""

import json
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprior.errors import UserError
from attnprior.workflow import failures, remote, remote_back, remote_jobs, transport

COMMAND = (
    "python -m attnprior.stages.train_student --student copy --checkpoint checkpoints/train_student/copy"
    ' --params \'{"a":" --threads 1 x"}\' --threads 1 --run-json r.json --events e.jsonl > t.log 2>&1'
)
TASK = {
    "job": "train_student/d/copy/seed0",
    "command": COMMAND,
    "params": "{}",
    "inputs": ["data/d.safetensors", "src/attnprior/files.py"],
    "outputs": ["w", "r.json"],
    "logs": {"text": "t.log", "events": "e.jsonl"},
    "benchmark": "b.tsv",
    "checkpoint": "checkpoints/train_student/copy",
}
HASHES = {"data/d.safetensors": "a" * 64, "src/attnprior/files.py": "b" * 64}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", ":s3:bucket/"),
        ("s3://bucket/a/b", ":s3:bucket/a/b/"),
        ("store:path/x", "store:path/x/"),
        ("store:", "store:"),
        ("/mnt/place/", "/mnt/place/"),
    ],
)
def test_urls_become_what_rclone_takes(url, expected):
    assert transport.root(url) == expected


@pytest.mark.parametrize("url", ["", "folder", "./folder", "s3://a b", "store:$(x)", "/a'b", ":s3,key=x:b"])
def test_what_nodes_could_not_use_as_it_stands_is_refused(url):
    with pytest.raises(UserError, match="ATTNPRIOR_REMOTE_URL"):
        transport.root(url)


@given(st.text(max_size=20))
def test_an_allowed_url_passes_a_shell_unchanged(text):
    try:
        transport.root(text)
    except UserError:
        return
    assert shlex.quote(text) == text


def test_rclone_gets_the_address_that_aws_tools_use_and_the_users_own_words_win():
    given_ = {"AWS_ENDPOINT_URL": "http://here:1", "AWS_REGION": "eu", "RCLONE_S3_PROVIDER": "Ceph"}
    found = transport.environment("s3://bucket", given_)
    assert (found["RCLONE_S3_ENDPOINT"], found["RCLONE_S3_REGION"]) == ("http://here:1", "eu")
    assert (found["RCLONE_S3_PROVIDER"], found["RCLONE_S3_NO_CHECK_BUCKET"]) == ("Ceph", "true")
    assert transport.environment("store:path", given_) == given_  # its configuration holds


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "2026/01/02 03:04:05 ERROR : a: Failed to copy: operation error S3: PutObject, https"
            " response error StatusCode: 403, RequestID: 1, HostID: 2, api"
            " error ExpiredToken: The token has expired.",
            "access is refused (ExpiredToken: The token has expired); check the credentials",
        ),
        ("ERROR : x, api error NoSuchBucket: none", "there is no such bucket (NoSuchBucket: none); make it"),
        ("ERROR : write /x/y: no space left on device", "there is no room, there or here"),
        ("ERROR : write /x/y: disk quota exceeded", "there is no room, there or here"),
        ("CRITICAL: Failed to create file system: didn't find section in config file", "no such remote"),
        ("ERROR : dial tcp 1.2.3.4:1: connect: connection refused", "it cannot be reached"),
        ("", "rclone failed"),
    ],
)
def test_failures_of_rclone_are_one_line_that_says_what_to_do(said, expected):
    assert expected in transport.reason(said) and "\n" not in transport.reason(said)


def script(tmp_path, **more):
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/sh\n# properties = {json.dumps({'type': 'single', **more})}\ncd /x && python\n")
    return path


def test_a_job_is_known_by_the_head_of_its_script(tmp_path):
    assert remote_jobs.properties(script(tmp_path, rule="train_student"))["rule"] == "train_student"
    with pytest.raises(UserError, match="groups of jobs"):
        remote_jobs.properties(script(tmp_path, type="group"))


def test_the_threads_of_the_run_reach_the_command_and_nothing_else_changes():
    changed = remote_jobs.with_threads(TASK, 3)["command"]
    words, before = shlex.split(changed), shlex.split(COMMAND)
    assert [a for a, b in zip(before, words, strict=True) if a != b] == ["1"]
    assert words[words.index("--threads") + 1] == "3"
    assert remote_jobs.with_threads(TASK, 1) == TASK


def test_the_folder_of_checkpoints_is_that_of_the_command():
    assert remote_jobs.checkpoint(COMMAND) == TASK["checkpoint"]
    assert remote_jobs.checkpoint("python -m attnprior.stages.evaluate --threads 1") is None


@pytest.mark.parametrize("path", ["/data/x.tar", "../x.tar", "a/../../x.tar"])
def test_an_input_outside_of_the_checkout_is_refused_with_what_to_do(path):
    with pytest.raises(UserError, match="attnprior run -- --until fetch_dataset"):
        remote_jobs.parts([path])


def test_a_package_names_inputs_and_code_by_content_and_equal_work_has_one_digest(monkeypatch):
    monkeypatch.setenv("ATTNPRIOR_COMMIT", "c" * 40)
    one, two = (remote_jobs.package(TASK, HASHES) for _ in range(2))
    assert one["inputs"] == {"data/d.safetensors": "a" * 64}
    assert one["code"] == {"src/attnprior/files.py": "b" * 64}
    assert one["environment"]["ATTNPRIOR_COMMIT"] == "c" * 40
    assert one["digest"] == two["digest"] and one["id"] != two["id"]
    other = remote_jobs.package(TASK, {**HASHES, "src/attnprior/files.py": "d" * 64})
    assert other["digest"] != one["digest"]
    assert shlex.quote(one["id"]) == one["id"]


def test_a_changed_input_is_hashed_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("one")
    first = remote_jobs.hashed(["x"])
    assert remote_jobs.hashed(["x"]) == first
    (tmp_path / "x").write_text("other")
    assert remote_jobs.hashed(["x"]) != first
    with pytest.raises(UserError, match="gone: cannot be read"):
        remote_jobs.hashed(["gone"])


ASKED = {"rule": "train_student", "threads": 2, "resources": {"mem_mb": 1000, "runtime": 60, "gpu": 1}}


def test_the_command_that_starts_a_job_gets_what_the_job_asks_for(monkeypatch):
    monkeypatch.setenv(
        "ATTNPRIOR_REMOTE_START", "sbatch -c {threads} --mem {mem_mb} -t {runtime} ${{X}} node.sh"
    )
    found = remote.start_command("id-1", "s3://b", ASKED)
    assert found == "sbatch -c 2 --mem 1000 -t 60 ${X} node.sh s3://b id-1"


@pytest.mark.parametrize("text", ["ssh {host}", "ssh {", "ssh {}", "ssh {threads.x}", "ssh {0}"])
def test_other_braces_are_refused(monkeypatch, text):
    monkeypatch.setenv("ATTNPRIOR_REMOTE_START", text)
    with pytest.raises(UserError, match="ATTNPRIOR_REMOTE_START: .* may have {rule}"):
        remote.start_command("id-1", "s3://b", ASKED)


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """A job at work in a checkout, and a function by which its node speaks."""
    monkeypatch.chdir(tmp_path)
    job = {**remote_jobs.package(TASK, HASHES), "url": "/nowhere", "started": True}
    remote_jobs.note(job)
    folder = remote_jobs.MIRROR / "jobs" / job["id"]
    folder.mkdir(parents=True)
    return job, lambda which, **words: (folder / which).write_text(json.dumps(words))


def test_a_node_is_lost_when_it_says_nothing_new_for_long(noted, monkeypatch):
    job, say = noted
    monkeypatch.setenv("ATTNPRIOR_REMOTE_SILENCE", "0.05")
    assert not remote_back.silent(job)  # it waits, however long
    say("live.json", beat=1)
    assert not remote_back.silent(job)
    time.sleep(0.06)
    assert remote_back.silent(job) and not remote_back.promising(job)
    say("live.json", beat=2)
    assert not remote_back.silent(job) and remote_back.promising(job)


def test_an_earlier_job_is_taken_over_unless_it_failed_or_is_cancelled(noted):
    job, say = noted
    assert remote_back.promising(job)
    assert not remote_back.promising({**job, "cancelled": True})
    assert not remote_back.promising({**job, "started": False})
    say("end.json", status="success")
    assert remote_back.promising(job)
    say("end.json", status="failed")
    assert not remote_back.promising(job)


def test_a_start_that_fails_is_told_with_its_last_line(noted):
    job, _ = noted
    folder = remote_jobs.JOBS / job["id"]
    assert remote_back.not_started(job["id"]) is None
    (folder / "start.log").write_text("trying\nssh: no route\n")
    (folder / "start.status").write_text("0\n")
    assert remote_back.not_started(job["id"]) is None
    (folder / "start.status").write_text("255\n")
    assert remote_back.not_started(job["id"]).endswith("failed with status 255: ssh: no route")


def test_the_last_error_of_a_silent_job_is_found_in_its_log(tmp_path):
    class Silent:
        logs = {"text": str(tmp_path / "t.log")}  # noqa: RUF012

    assert failures._own_words(Silent) == ""
    (tmp_path / "t.log").write_text("epoch 1\nerror: node x: no\n\n")
    assert failures._own_words(Silent) == "node x: no"
    (tmp_path / "t.log").write_text("error: early\nepoch 2\n")
    assert failures._own_words(Silent) == ""
