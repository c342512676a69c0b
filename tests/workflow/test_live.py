"""The live view: what it draws at any size, and on a real pseudo-terminal what a person sees of it."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from attnprior.workflow import live
from attnprior.workflow.progress import Row, Snapshot
from tests import terminal
from tests.workflow import project as projects

ROOT = Path(__file__).parents[2]
ROWS = (
    Row("train_student/digits/copy_random_teacher/seed12", 17, 40, 0.53214, 0.7125, 1020.4, 142.2),
    Row("pretrain_teacher/digits/mae_model_i/seed3", 55, 100, 0.2, None, 3300.0, 4000.0),
    Row("evaluate/digits/copy/seed0", None, None, None, None, None, None),
)


def drawn(snapshot, width=80, height=24, now=100.0, **more):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=True)
    console.print(live.draw(snapshot, now, console, **more))
    return console.file.getvalue().splitlines()


def test_it_shows_counts_times_and_every_running_job():
    lines = drawn(Snapshot(40, 12, 3, 24, 1, begun=28.0, ends_at=4100.0, rows=ROWS))
    assert lines[0] == "12 of 40 jobs done, 3 running, 24 waiting, 1 failed"
    assert lines[1] == "██████░░░░░░░░░░░░░░ 1:12 elapsed, about 1:06:40 left"
    assert lines[2].split() == ["running", "epoch", "loss", "val", "%", "img/s", "left"]
    assert lines[3].split() == [
        "..udent/digits/copy_random_teacher/seed12",
        "17/40",
        "0.5321",
        "71.2",
        "1020",
        "42",
        "s",
    ]
    assert lines[4].split()[1:] == ["55/100", "0.2", "3300", "1:05:00"]
    assert lines[5].split() == ["evaluate/digits/copy/seed0"]
    assert len({len(line) for line in lines[2:5]}) == 1


@pytest.mark.parametrize("width", [20, 40, 49, 50, 60, 79, 80, 120, 300])
def test_no_line_is_wider_than_the_terminal_and_the_seed_stays_in_sight(width):
    lines = drawn(Snapshot(40, 12, 3, 24, 1, ends_at=4100.0, rows=ROWS), width)
    assert max(map(len, lines)) <= width - 4  # two keys such as ^C fit behind it
    assert len(lines) == 6
    if width >= 49:
        assert "/seed12 " in lines[3] and "17/40" in lines[3] and "42 s" in lines[3]
        assert ("1020" in lines[3]) == (width >= 54)


@pytest.mark.parametrize("height", [3, 5, 8, 24])
def test_more_jobs_than_lines_are_counted(height):
    rows = tuple(Row(f"train_student/digits/a/seed{k}", 1, 2, 0.5, 0.5, 9.0, None) for k in range(30))
    lines = drawn(Snapshot(40, 0, 30, 10, 0, rows=rows), height=height)
    assert len(lines) < height
    if height > 5:
        assert lines[-1] == f"and {30 - (height - 5)} more"


def test_stopping_and_the_end_are_said():
    assert drawn(Snapshot(2, 1, 1, 0, ends_at=200.0), instead=", stopping")[1].endswith(
        "1:40 elapsed, stopping"
    )
    assert drawn(Snapshot(2, 2, 0, 0, begun=90.0, ends_at=100.0))[1] == "████████████████████ 10 s elapsed"


PLAY = """
import json, os, sys, time
from pathlib import Path
from attnprior.workflow import live
from attnprior.workflow.engines import Job
from attnprior.workflow.progress import Progress
jobs = []
for k in range(4):
    logs = {"text": f"logs/{k}.log", "events": f"{k}.events.jsonl"}
    jobs.append(Job("train_student", {"seed": str(k)}, [], [], f"{k}.json", "{}", logs))
progress = Progress(jobs)
progress.invocation = "i"
def event(k, **values):
    with open(f"{k}.events.jsonl", "a") as f:
        f.write(json.dumps({"time": time.time(), **values}) + "\\n")
with live.view(progress) as view:
    for epoch in range(int(sys.argv[1])):
        for k in range(4):
            if epoch == 0:
                event(k, event="start", job="j", job_id="i", rule="r", total=4, images=10)
            if epoch < 4:
                event(k, event="metrics", step=epoch + 1, values={"loss": 1 / (epoch + 1), "val_top1": 0.5})
        if epoch == 1:
            event(3, event="end", status="failed", values={}, error="it broke")
            print("a warning of another process", file=sys.stderr)
        view.show(*progress.update())
        time.sleep(0.3)
    for k in range(4):
        if k != 3 or sys.argv[2] == "mend":
            Path(f"{k}.json").write_text(json.dumps({"invocation": "i", "seconds": {"total": 2.0}}))
    view.show(*progress.update(last=True))
print("the end")
"""


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "COLUMNS", "LINES", "NO_COLOR")}
    return {**env, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", **more}


def play(tmp_path, *arguments, columns=80, rows=24, act=lambda screen, fd, pid: None, **env):
    command = [sys.executable, "-c", PLAY, *arguments]
    status, screen = terminal.run(command, tmp_path, environment(**env), columns, rows, act, 60)
    assert status == 0, screen.everything()
    return screen


def test_on_a_terminal_one_view_is_renewed_and_errors_stay_above_it(tmp_path):
    seen = []

    def act(screen, fd, pid):
        if len(seen) == 3:
            os.write(fd, b"xyz")  # the terminal shows keys where the cursor is
        seen.append(screen.text())

    screen = play(tmp_path, "8", "leave", act=act)
    lines = screen.text().splitlines()
    assert lines[0] == "a warning of another process"
    assert lines[1] == "error: train_student/seed3: it broke (log: logs/3.log)"
    assert lines[2] == "3 of 4 jobs done, 0 running, 0 waiting, 1 failed"
    assert "elapsed" in lines[3]
    assert lines[4:] == ["the end"]
    assert screen.scrolled == [] and screen.cursor_shown
    assert any("train_student/seed0" in text and "4/4" in text for text in seen)
    assert all(text.count("jobs done") <= 1 for text in seen)


def test_a_small_terminal_that_shrinks_shows_one_view(tmp_path):
    changed = []

    def act(screen, fd, pid):
        if not changed and "4/4" in screen.text():
            changed.append(1)
            screen.resize(60, 9)
            terminal.set_size(fd, 60, 9)

    screen = play(tmp_path, "12", "mend", columns=100, rows=30, act=act)
    lines = screen.text().splitlines()
    assert changed
    assert lines[-3] == "4 of 4 jobs done, 0 running, 0 waiting, 0 failed"
    assert lines[-1] == "the end"
    assert screen.text().count("jobs done") == 1
    assert "error: train_student/seed3: it broke (log: logs/3.log)" in screen.text()
    assert screen.cursor_shown


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_dumb_terminal_and_ci_get_lines(tmp_path, setting):
    screen = play(tmp_path, "3", "mend", **setting)
    shown = screen.text()
    assert re.search(r"^\[1/4\] train_student/seed0  2\.0 s$", shown, re.M)
    assert "jobs done" not in shown


def test_a_pipe_gets_lines_and_errors_go_to_stderr(tmp_path):
    command = [sys.executable, "-c", PLAY, "3", "leave"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        *(f"[{k + 1}/4] train_student/seed{k}  2.0 s" for k in range(3)),
        "the end",
    ]
    assert "error: train_student/seed3: it broke (log: logs/3.log)\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def on_a_terminal(project, act=lambda screen, fd, pid: None):
    env = projects.environment(TERM="xterm-256color")
    for name in ("CI", "COLUMNS", "LINES"):
        env.pop(name, None)
    return terminal.run([sys.executable, "-m", "attnprior", "run"], project.root, env, 100, 40, act)


@pytest.mark.slow
@pytest.mark.workflow
def test_a_study_on_a_terminal_ends_with_all_jobs_done(project):
    project.put("students.impulse.labels", 150)
    seen = []
    status, screen = on_a_terminal(project, lambda screen, *_: seen.append(screen.text()))
    assert status == 0
    everything = screen.everything()
    jobs = re.search(r"(\d+) of \d+ jobs to run", everything)[1]
    assert f"{jobs} of {jobs} jobs done, 0 running, 0 waiting, 0 failed" in everything
    assert everything.count("jobs done") == 1
    assert "files/s" not in everything  # DVC's bars
    assert screen.cursor_shown
    assert any(re.search(r"train_student/digits/impulse/seed\d +[12]/2 ", text) for text in seen)


@pytest.mark.slow
@pytest.mark.workflow
def test_ctrl_c_ends_the_jobs_and_leaves_a_sound_terminal(project):
    project.put("recipes.student.epochs", 2000)
    pressed, seen = [], []

    def act(screen, fd, pid):
        seen.append(screen.text())
        if not pressed and re.search(r"train_student/\S+ +[1-9]\d*/2000", screen.text()):
            pressed.append(1)
            os.write(fd, b"\x03")

    status, screen = on_a_terminal(project, act)
    assert pressed
    assert status == 130
    assert screen.cursor_shown
    assert any("stopping" in text for text in seen)
    assert "jobs not finished" in screen.everything()
    for path in project.root.glob("logs/train_student/**/*.events.jsonl"):
        assert json.loads(path.read_text().splitlines()[-1])["event"] == "end"
