"""Several processes share a training: the weights of one, whatever their number, and whoever of them ends."""

import json
import os
import re
import signal
import socket
import subprocess

import psutil
import pytest

from attnprior.files import load_tensors
from tests import processes as python
from tests.stages import commands
from tests.stages.test_resume import finish

MIXED = {"mixup": 0.8, "cutmix": 1.0, "mix_probability": 0.7, "mix_switch": 0.5}
SHARED = {
    **{**commands.RECIPE, "augment": {**commands.AUGMENT, **MIXED}, "grad_clip": 0.5, "lr": 0.01},
    **{"epochs": 3, "batch_size": 8, "accumulate": 4, "ema": 0.9},
}
# 50 images are 7 batches of 8, so steps of 4 and 3 of them: in the second, one of 4 processes has none.
CASES = {
    "student": ("train_student", "runs/digits/distil/seed0", "history.csv"),
    "teacher": ("pretrain_teacher", "teachers/digits/mae/seed0", "history.csv"),
}


def arguments(case, count, sharded=False, **changes):
    changes |= {"sharded": sharded} if count > 1 else {}
    if case == "student":
        argv = commands.train("distil", recipe={**SHARED, "processes": count, **changes}, labels=50)
    else:
        # Not Adam, which makes steps of the rounding errors that are all the gradient a key's bias has.
        plain = {"drop_path": 0.0, "augment": commands.AUGMENT, "batch_size": 128, "optimizer": "sgd"}
        recipe = {**SHARED, "processes": count, **plain, "momentum": 0.9, **changes}
        argv = commands.teacher(recipe={k: v for k, v in recipe.items() if k not in ("betas", "eps")})
    argv[argv.index("--threads") + 1] = str(count)
    return argv


def made(project, folder, log):
    """Return what a job made, and remove it."""
    weights = load_tensors(str(project / folder / "weights.safetensors"))[0]
    history = (project / folder / "history.csv").read_text()
    record = json.loads((project / folder / "run.json").read_text())
    events = [json.loads(line) for line in (project / log).read_text().splitlines()]
    for path in [*(project / folder).iterdir(), project / log]:
        path.unlink()
    return weights, history, record, events


def close(first, second):
    """Return whether weights differ by less than 1e-4 of the root mean square of each tensor."""
    assert first.keys() == second.keys()
    far = {k: (first[k] - second[k]).abs().max() / first[k].square().mean().sqrt() for k in first}
    worst = max(far, key=lambda k: far[k])
    assert far[worst] < 1e-4, f"{worst}: {far[worst]:.2g}"
    return True


def rows(history):
    return [[float(v) for v in line.split(",")] for line in history.splitlines()[1:]]


def own(project, case):
    """Return the event log of a case, its teachers no longer those of all tests."""
    if case == "teacher":
        (project / "teachers").unlink()
    return {
        "student": "logs/train_student/distil.seed0.events.jsonl",
        "teacher": "logs/pretrain_teacher/mae.seed0.events.jsonl",
    }[case]


@pytest.mark.parametrize(
    ("case", "counts", "sharded"),
    [
        ("student", (2,), False),
        pytest.param("student", (3, 4), False, marks=pytest.mark.slow),
        pytest.param("student", (2, 3, 4), True, marks=pytest.mark.slow),
        pytest.param("teacher", (2, 4), False, marks=pytest.mark.slow),
        pytest.param("teacher", (2, 4), True, marks=pytest.mark.slow),
    ],
)
def test_processes_agree_with_one(project, case, counts, sharded):
    rule, folder, _ = CASES[case]
    log = own(project, case)
    finish(commands.start(rule, arguments(case, 1), project))
    weights, history, record, events = made(project, folder, log)
    assert record["processes"] == 1
    for count in counts:
        out = finish(commands.start(rule, arguments(case, count, sharded), project))
        more = ", weights sharded" if sharded else ""
        assert f" x 4 in {count} processes{more})" in out and out.count("epoch 1:") == 1
        found, again, record, others = made(project, folder, log)
        assert close(weights, found)
        for one, many in zip(rows(history), rows(again), strict=True):
            assert many == pytest.approx(one, rel=1e-4, abs=1e-6)
        assert record["processes"] == count
        kinds = [(e["event"], e.get("step")) for e in others]
        assert kinds == [(e["event"], e.get("step")) for e in events]  # one log, nothing twice
        assert not (project / "checkpoints" / folder).exists()


@pytest.mark.slow
def test_a_training_moves_between_numbers_of_processes(project):
    rule, folder, _ = CASES["student"]
    log = own(project, "student")
    finish(commands.start(rule, arguments("student", 1, epochs=60), project))
    weights, history, _, _ = made(project, folder, log)
    attempts = [
        (2, False, signal.SIGTERM, 5),
        (1, False, signal.SIGUSR1, 15),
        (3, False, signal.SIGUSR1, 25),
        (2, True, signal.SIGTERM, 35),
        (1, False, signal.SIGUSR1, 40),
        (3, True, signal.SIGUSR1, 45),
    ]
    for count, sharded, number, epoch in attempts:
        process = commands.start(rule, arguments("student", count, sharded, epochs=60), project)
        for line in process.stdout:
            if line.startswith(f"epoch {epoch}:"):
                break
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 75, out + error
        assert len(re.findall(rf"stopped by {number.name} after epoch \d+ step \d+;", error)) == 1
        assert not (project / folder / "weights.safetensors").exists()
    out = finish(commands.start(rule, arguments("student", 2, True, epochs=60), project))
    assert "resuming attempt 7 after epoch" in out
    found, again, record, events = made(project, folder, log)
    assert close(weights, found) and record["attempts"] == 7
    for one, many in zip(rows(history), rows(again), strict=True):
        assert many == pytest.approx(one, rel=1e-3, abs=1e-5)
    steps = [e["step"] for e in events if e["event"] == "metrics"]
    assert steps == list(range(1, 61))  # none lost, none twice
    assert [e["status"] for e in events if e["event"] == "end"] == ["stopped"] * 6 + ["finished"]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("which", ["a process", "the launcher"])
def test_a_training_whose_process_is_killed_ends_and_goes_on(project, which, sharded):
    rule, folder, _ = CASES["student"]
    log = own(project, "student")
    argv = arguments("student", 2, sharded, epochs=120)
    process = commands.start(rule, argv, project, ATTNPRIOR_CHECKPOINT_SECONDS="0")
    for line in process.stdout:
        if line.startswith("epoch 3:"):
            break
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    os.kill(process.pid if which == "the launcher" else workers[1].pid, signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (-9 if which == "the launcher" else 1)
    assert psutil.wait_procs(workers, timeout=45)[1] == [], "processes of a killed training go on"
    if which == "a process":
        assert "error: process 0 of 2: the others cannot be reached, so one of them ended (" in error
    assert not (project / folder / "weights.safetensors").exists()
    assert "resuming attempt 2 after epoch" in finish(commands.start(rule, argv, project))
    steps = [e["step"] for e in made(project, folder, log)[3] if e["event"] == "metrics"]
    # The kill may fall between an epoch's row and its save: then it is made, and told, again.
    assert list(dict.fromkeys(steps)) == list(range(1, 121)) and len(steps) <= 121


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_divergence_is_told_once(project, sharded):
    rule, folder, _ = CASES["student"]
    changes = {"lr": 1e30, "grad_clip": 0.0, "warmup_epochs": 0}
    process = commands.start(rule, arguments("student", 2, sharded, **changes), project)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert len(re.findall(r"^error: .*training diverged at step", error, re.M)) == 1
    assert not (project / folder / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "WORLD_SIZE 2: the recipe has processes 4; start the stage without",
        ),
        ({"ATTNPRIOR_NODES": "3"}, "the recipe has processes 4, which 3 nodes cannot share evenly;"),
        ({"ATTNPRIOR_NODES": "no"}, "ATTNPRIOR_NODES: 'no' is no number of nodes from 1;"),
        (
            {"ATTNPRIOR_NODES": "2", "ATTNPRIOR_RENDEZVOUS": "here"},
            "ATTNPRIOR_RENDEZVOUS: 'here' is not HOST:PORT;",
        ),
        (
            {"ATTNPRIOR_NODES": "2", "ATTNPRIOR_RENDEZVOUS": "here:1", "ATTNPRIOR_NODE": "2"},
            "ATTNPRIOR_NODE: '2' is no number from 0 to 1;",
        ),
        ({"ATTNPRIOR_NODES": "2"}, "ATTNPRIOR_NODES: 2, but not ATTNPRIOR_RENDEZVOUS; set it to HOST:PORT"),
    ],
)
def test_a_wrong_start_is_one_line(project, environment, message):
    process = commands.start("train_student", arguments("student", 4), project, **environment)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and error.startswith(f"error: {message}") and error.count("\n") == 1


NETWORK = """
ip link add {a} type veth peer name {b}
ip link set {b} netns {other}
ip addr add 10.213.7.1/24 dev {a}
ip link set {a} up
ip -n {other} addr add 10.213.7.2/24 dev {b}
ip -n {other} link set {b} up
ip -n {other} link set lo up
"""


@pytest.fixture
def other_network():
    """Return the name of a network namespace which reaches this one at 10.213.7.1."""
    name = "attnprior-test"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here (root and ip are needed)")
    try:
        for line in NETWORK.format(a="attnp-a", b="attnp-b", other=name).split("\n"):
            if line and subprocess.run(line.split(), capture_output=True, check=False).returncode:
                pytest.skip(f"{line}: not allowed here")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.slow
def test_two_machines_share_a_training(project, other_network):
    rule, folder, _ = CASES["student"]
    log = own(project, "student")
    finish(commands.start(rule, arguments("student", 1), project))
    weights = made(project, folder, log)[0]
    with socket.socket() as s:
        s.bind(("10.213.7.1", 0))
        port = s.getsockname()[1]
    more = {"ATTNPRIOR_NODES": "2", "ATTNPRIOR_RENDEZVOUS": f"10.213.7.1:{port}"}
    argv = arguments("student", 4)
    one = commands.start(rule, argv, project, **more, ATTNPRIOR_NODE="0", GLOO_SOCKET_IFNAME="attnp-a")
    there = ["ip", "netns", "exec", other_network, "env", "GLOO_SOCKET_IFNAME=attnp-b"]
    command = [*there, python.sys.executable, "-m", f"attnprior.stages.{rule}", *argv]
    two = subprocess.Popen(
        command,
        cwd=project,
        env=python.environment(**more, ATTNPRIOR_NODE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = [finish(one), finish(two)]
    assert sum("in 4 processes)" in text for text in said) == 1
    found, _, record, _ = made(project, folder, log)
    assert close(weights, found) and record["processes"] == 4
