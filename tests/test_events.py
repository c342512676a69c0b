import json
import resource

from attnprior.events import EventLog


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_appear_in_order_and_are_flushed_one_by_one(tmp_path):
    path = tmp_path / "logs" / "a.events.jsonl"
    log = EventLog(path)
    log.start(resume=False, job="a/b", attempt=1)
    log.metrics(1, {"loss": 0.5})
    assert [e["event"] for e in read(path)] == ["start", "metrics"]
    log.end("finished", {"loss": 0.5}, ["x"])
    start, metrics, end = read(path)
    assert start["job"] == "a/b" and start["attempt"] == 1
    assert metrics["step"] == 1 and metrics["values"] == {"loss": 0.5}
    assert end["status"] == "finished" and end["artifacts"] == ["x"] and end["error"] is None
    assert start["time"] <= metrics["time"] <= end["time"]


def test_a_fresh_start_empties_the_log_and_a_resume_appends(tmp_path):
    path = tmp_path / "a.jsonl"
    for resume, attempt in [(False, 1), (True, 2)]:
        EventLog(path).start(resume=resume, attempt=attempt)
    assert [e["attempt"] for e in read(path)] == [1, 2]
    EventLog(path).start(resume=False, attempt=1)
    assert [e["attempt"] for e in read(path)] == [1]


def test_rows_of_earlier_attempts_are_filled_in_where_the_log_has_lost_them(tmp_path):
    path, rows = tmp_path / "a.jsonl", [(1, {"loss": 3.0}), (2, {"loss": float("nan")}), (3, {"loss": 1.0})]
    log = EventLog(path)
    log.start(resume=False, attempt=1)
    for row in rows[1:]:
        log.metrics(*row)
    with open(path, "ab") as f:
        f.write(b'{"event":"met')
    EventLog(path).start(resume=True, rows=rows, attempt=2)
    kept = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert [(e.get("step"), e.get("filled", False)) for e in kept if e["event"] == "metrics"] == [
        (2, False),
        (3, False),
        (1, True),
    ]
    path.unlink()
    EventLog(path).start(resume=True, rows=rows, attempt=3)
    start, *found = read(path)
    assert start["attempt"] == 3 and all(e["filled"] for e in found)
    assert [(e["step"], e["values"]["loss"]) for e in found] == [(1, 3.0), (2, None), (3, 1.0)]


def test_a_resume_after_half_a_line_starts_a_new_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"event":"start"}\n{"event":"met')
    EventLog(path).start(resume=True, attempt=2)
    lines = path.read_text().splitlines()
    assert lines[1] == '{"event":"met'
    assert json.loads(lines[2])["attempt"] == 2


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    path = tmp_path / "a.jsonl"
    log = EventLog(path)
    log.start(resume=False)
    log.metrics(1, {"loss": float("nan"), "all": [float("inf"), 1.0]})
    assert read(path)[1]["values"] == {"loss": None, "all": [None, 1.0]}


def test_a_log_that_cannot_be_written_warns_once_and_never_raises(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    log = EventLog(tmp_path / "file" / "a.jsonl")
    log.start(resume=False, job="a")
    log.metrics(1, {"loss": 1.0})
    log.end("finished", {}, [])
    assert capsys.readouterr().err.count("warning: ") == 1


def test_a_full_disk_warns_once_and_never_raises(capsys):
    log = EventLog("/dev/full")
    log.start(resume=False, job="a")
    log.metrics(1, {"loss": 1.0})
    log.end("finished", {}, [])
    assert capsys.readouterr().err.count("warning: ") == 1


def test_lines_that_a_full_disk_kept_out_are_written_once_there_is_room(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    log = EventLog(path)
    log.start(resume=False, job="a")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limit[1]))  # room for half a line
    try:
        log.metrics(1, {"loss": 1.0})
        log.metrics(2, {"loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not path.read_text().endswith("\n")
    log.metrics(3, {"loss": 0.25})
    log.end("finished", {}, [])
    assert [e["event"] for e in read(path)] == ["start", "metrics", "metrics", "metrics", "end"]
    assert [e["step"] for e in read(path)[1:4]] == [1, 2, 3]
    assert capsys.readouterr().err.count("warning: ") == 1


def test_a_folder_that_can_be_written_only_later_gets_the_whole_log(tmp_path, capsys):
    (tmp_path / "logs").write_text("")
    log = EventLog(tmp_path / "logs" / "a.jsonl")
    log.start(resume=False, job="a")
    (tmp_path / "logs").unlink()
    log.end("finished", {}, [])
    assert [e["event"] for e in read(tmp_path / "logs" / "a.jsonl")] == ["start", "end"]
    assert capsys.readouterr().err.count("warning: ") == 1
