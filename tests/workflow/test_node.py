"""A node's side of a job, with rclone and a folder as the URL; stages are stood for by short commands."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from attnprior.errors import UserError
from attnprior.files import sha256
from attnprior.source import code_path
from attnprior.workflow import node, transport
from tests.sharing.servers import has_program
from tests.workflow.project import ROOT, environment

pytestmark = pytest.mark.skipif(not has_program("rclone"), reason="needs rclone: pip install .[remote]")
CODE = "src/attnprior/errors.py"
# Counts to 500 like a training: saves each count, goes on from it, and saves and ends with 75 when asked to.
TRAINING = """
import os, pathlib, signal, time
state = pathlib.Path("checkpoints/t/state.pt")
state.parent.mkdir(parents=True, exist_ok=True)
count = int(state.read_text()) if state.exists() else 0
asked = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: asked.append(1))
print("from", count, flush=True)
pause = 0.002 if count else 0.1
while count < 500 and not asked:
    time.sleep(pause)
    count += 1
    state.with_name("new").write_text(str(count))
    os.replace(state.with_name("new"), state)
if asked:
    print("stopped by test after", count, flush=True)
    raise SystemExit(75)
"""


class Place:
    """A URL that is a folder, where the test asks for jobs; nodes share a folder, so ids are its own."""

    def __init__(self, folder: Path) -> None:
        self.url, self.folder = str(folder), folder
        self.first, self.second = (f"job-{k}-{uuid.uuid4().hex[:12]}" for k in (1, 2))
        folder.mkdir()

    def ask(self, command: str, job_id: str | None = None, **more) -> dict:
        job_id = job_id or self.first
        job = {
            "id": job_id,
            "job": "t",
            "command": command,
            "inputs": {},
            "code": {CODE: sha256(code_path(CODE))},
            "outputs": [],
            "logs": {"text": "logs/t.log", "events": "logs/t.events.jsonl"},
            "benchmark": "logs/t.benchmark.tsv",
            "checkpoint": None,
            "environment": {"ATTNPRIOR_COMMIT": "c" * 40},
            "after": [],
            **more,
        }
        path = self.folder / "jobs" / job_id / "job.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(job))
        return job

    def put(self, content: bytes) -> str:
        path = self.folder / "new"
        path.write_bytes(content)
        sha = sha256(path)
        (self.folder / "files").mkdir(exist_ok=True)
        path.rename(self.folder / "files" / sha)
        return sha

    def end(self, job_id: str | None = None) -> dict:
        return json.loads((self.folder / "jobs" / (job_id or self.first) / "end.json").read_text())

    def start(self, job_id: str | None = None) -> subprocess.Popen:
        env = environment(PYTHONPATH=str(ROOT / "src"), ATTNPRIOR_REMOTE_SECONDS="0.2")
        command = [sys.executable, "-m", "attnprior.workflow.node", self.url, job_id or self.first]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "FOLDER", tmp_path / "node")
    before = {number: signal.getsignal(number) for number in node.SIGNALS}
    yield Place(tmp_path / "place")
    for number, handler in before.items():
        signal.signal(number, handler)


def run(place) -> int:
    return node.Node(place.url, place.first).run()


def test_inputs_come_outputs_and_logs_go_and_nothing_stays(place, tmp_path):
    sha = place.put(b"data")
    command = "cat in/x in/x > out/y; echo said > logs/t.log; echo $ATTNPRIOR_COMMIT > out/z"
    place.ask(f"bash -c {command!r}", inputs={"in/x": sha}, outputs=["out/y", "out/z"])
    assert run(place) == 0
    end = place.end()
    assert end["status"] == "success" and end["logs"]["logs/t.log"] == "said\n"
    sent = {path: (place.folder / "files" / s).read_bytes() for path, s in end["outputs"].items()}
    assert sent == {"out/y": b"datadata", "out/z": b"c" * 40 + b"\n"}
    assert end["logs"]["logs/t.benchmark.tsv"].splitlines()[0].split("\t")[:3] == ["s", "h:m:s", "max_rss"]
    assert [p.name for p in (tmp_path / "node").iterdir()] == ["files"]


def test_a_failure_is_told_with_its_status_and_log(place):
    place.ask("bash -c 'echo error: it broke > logs/t.log; exit 3'")
    assert run(place) == 3
    assert place.end()["status"] == "failed" and "status 3" in place.end()["error"]
    assert place.end()["logs"]["logs/t.log"] == "error: it broke\n"


def test_other_code_is_refused_before_the_command_runs(place, tmp_path):
    place.ask(f"touch {tmp_path}/ran", code={CODE: "0" * 64})
    assert run(place) == 1
    assert f"{CODE} in {node.CHECKOUT} is not as on the machine that submits" in place.end()["error"]
    assert "c" * 40 in place.end()["error"] and not (tmp_path / "ran").exists()


def test_an_input_that_is_damaged_or_missing_is_refused(place):
    sha = place.put(b"data")
    (place.folder / "files" / sha).write_bytes(b"tada")
    place.ask("true", inputs={"in/x": sha})
    assert run(place) == 1
    assert "in/x: not at" in place.end()["error"]


def test_a_job_that_was_taken_back_is_told(place):
    with pytest.raises(UserError, match="not there; it was taken back"):
        run(place)


def stopped_and_resumed(place, ask) -> None:
    """Stop a training by `ask` of its process, and let another attempt go on from what it saved."""
    asked = {"command": "python train.py > logs/t.log", "checkpoint": "checkpoints/t"}
    asked["inputs"] = {"train.py": place.put(TRAINING.encode())}
    place.ask(**asked)
    child = place.start()
    state = place.folder / "checkpoints/t/state.pt"
    until(state.exists)
    ask(child)
    assert child.wait(timeout=120) == 75, child.stderr.read()
    assert place.end()["status"] == "failed" and "stopped by" in place.end()["logs"]["logs/t.log"]
    saved = int(state.read_text())
    assert f"after {saved}" in place.end()["logs"]["logs/t.log"]
    place.ask(job_id=place.second, after=[place.first], **asked)
    assert place.start(place.second).wait(timeout=120) == 0
    assert place.end(place.second)["logs"]["logs/t.log"] == f"from {saved}\n"
    assert not state.exists() and not (place.folder / "jobs" / place.first).exists()


def until(true) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_the_stage_and_another_attempt_resumes(place, number):
    stopped_and_resumed(place, lambda child: child.send_signal(number))


def test_a_request_at_the_url_stops_the_stage(place):
    stopped_and_resumed(place, lambda _: (place.folder / "jobs" / place.first / "cancel").touch())


def test_files_are_sent_once_by_content_and_renewed_by_name(place, tmp_path):
    path = tmp_path / "x"
    path.write_text("one")
    transport.send(place.url, {"files/x": path, "live/x": path})
    path.write_text("two")
    os.utime(path, (1, 1))
    transport.send(place.url, {"files/x": path}, once=True)
    transport.send(place.url, {"live/x": path})
    assert (place.folder / "files/x").read_text() == "one"
    assert (place.folder / "live/x").read_text() == "two"
    transport.fetch(place.url, ["files/x", "gone"], tmp_path / "got")
    assert [p.name for p in (tmp_path / "got").rglob("*") if p.is_file()] == ["x"]
    transport.send_text(place.url, ["live/a", "live/b/c"], "stop\n")
    assert (place.folder / "live/b/c").read_text() == (place.folder / "live/a").read_text() == "stop\n"
    transport.remove(place.url, "live")
    assert transport.names(place.url, "live") == [] and transport.names(place.url, "files") == ["x"]
    transport.remove(place.url, "never")
