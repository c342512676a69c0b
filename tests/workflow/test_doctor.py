"""Each case is made for real in a folder of its own: files, locks of other processes, programs that fail."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnprior.workflow import doctor, doctor_locks, doctor_machine, doctor_project, doctor_software, params
from attnprior.workflow.finding import OK, PROBLEM, WARNING
from attnprior.workflow.processes import alive, holders
from attnprior.workflow.records import judged, record_of
from tests.workflow import project as projects

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import fcntl, sys
f = open(sys.argv[1], "a")
fcntl.flock(f, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
EXCLUSIVE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin exclusive")
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that holds a lock until the block ends."""

    def __init__(self, program: str, path: Path) -> None:
        command = [sys.executable, "-c", program, str(path)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> int:
        assert self._child.stdout.readline() == "held\n"
        return self._child.pid

    def __exit__(self, *_) -> None:
        self._child.communicate()


def only(found):
    (finding,) = found
    return finding


def ended() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout as a clone leaves it: git and DVC set up, nothing made."""
    root = tmp_path_factory.mktemp("doctor") / "checkout"
    root.mkdir()
    for name in (*projects.SHIPPED, "constraints"):
        if (ROOT / name).is_symlink():
            (root / name).symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    (root / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc/config", root / ".dvc/config")
    made = projects.Project(root)
    made.git("init", "-q")
    made.commit("Clone")
    return made


def state(root: Path) -> dict:
    """Return everything about a checkout, time stamps of files included, but Python's own cache."""
    return {
        p: (
            0 if p.is_dir() else p.lstat().st_mtime_ns,
            p.lstat().st_mode,
            p.read_bytes() if p.is_file() else b"",
        )
        for p in sorted(root.rglob("*"))
        if "__pycache__" not in p.parts
    }


def test_a_sound_checkout_has_no_problem_and_is_left_as_it_was(checkout):
    before = state(checkout.root)
    done = checkout.attnprior("doctor", "--json", MLFLOW_TRACKING_URI="")
    assert state(checkout.root) == before
    found = {f["check"]: f for f in json.loads(done.stdout)}
    assert not [f for f in found.values() if f["level"] == PROBLEM]
    assert {"python", "packages", "torch", "memory", "disk", "git", "dvc", "slurm", "locks"} <= set(found)
    assert found["jobs"]["text"].startswith("0 of ") and found["jobs"]["level"] == OK


def test_problems_come_first_and_give_exit_status_1(checkout, tmp_path, monkeypatch, capsys):
    root = tmp_path / "broken"
    shutil.copytree(checkout.root, root, symlinks=True)
    (root / "profiles").unlink()
    (root / "params.yaml").write_text((root / "params.yaml").read_text().replace("active:", "activ:", 1))
    monkeypatch.chdir(root)
    assert doctor.doctor() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["problem", "params.yaml"], ["problem", "profiles"]]
    assert lines[-1].startswith("2 problems, ")


def test_a_check_that_fails_itself_does_not_end_the_others():
    def broken():
        yield doctor.ok("x", "fine")
        raise ValueError("a\nb")

    assert only(doctor.guarded("x", broken)).text == "could not be checked: ValueError: a b"


def test_packages_outside_the_bounds_missing_or_not_as_pinned_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'requires-python = ">=3.11"\ndependencies = ["numpy>=99", "nosuchpackage>=1", "pyyaml"]\n'
    Path("pyproject.toml").write_text("[project]\n" + text)
    Path("constraints").mkdir()
    Path(f"constraints/py3{sys.version_info[1]}.txt").write_text("PyYAML==0.1\n")
    found = list(doctor_software.packages())
    assert [f.level for f in found] == [PROBLEM, PROBLEM, WARNING, OK]
    assert "numpy" in found[0].text and "nosuchpackage is missing" in found[1].text
    assert "pyyaml" in found[2].text and "(pinned 0.1)" in found[2].text
    assert only(doctor_software.python()).level == OK
    Path("pyproject.toml").write_text('[project]\nrequires-python = "<3"\n')
    assert only(doctor_software.python()).level == PROBLEM


def test_without_the_c_parser_of_yaml_dvc_is_slow():
    assert only(doctor_software.yaml_parser()).level == OK
    assert "ruamel.yaml.clib" in only(doctor_software.yaml_parser("no_such_module")).text


def started(program: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("device", "program", "level", "words"),
    [
        ("cpu", "", OK, "compute.device: cpu"),
        ("cuda", "", PROBLEM, "set compute.device: cpu"),
        ("cpu", "import nosuchmodule", PROBLEM, "No module named 'nosuchmodule'"),
        ("cpu", "import time; time.sleep(60)", OK, "took more than"),
    ],
)
def test_torch_and_the_device_of_the_settings(monkeypatch, device, program, level, words):
    monkeypatch.setattr(doctor_software, "cuda_devices", list)  # as on a machine without one
    child, settings = started(program), {"compute": {"device": device}}
    wait = 0.5 if "sleep" in program else 60
    found = only(doctor_software.torch_found(child, time.monotonic() + wait, settings))
    assert found.level == level and words in found.text


def test_a_library_that_is_no_cuda_driver_means_no_device():
    assert doctor_software.cuda_devices("libnosuch.so") == []
    assert doctor_software.cuda_devices("libc.so.6") == []


def test_fewer_cores_than_threads_and_little_memory_or_disk():
    settings = params.load(ROOT)
    assert {f.level for f in doctor_machine.machine(settings, ROOT)} <= {OK, WARNING}
    settings["compute"]["torch_threads"] = 10_000
    assert next(iter(doctor_machine.machine(settings, ROOT))).level == PROBLEM
    assert doctor_machine.memory(600e6, 2, int(500e6)).level == PROBLEM
    few = doctor_machine.memory(600e6, 4, int(2e9))
    assert few.level == WARNING and few.text.endswith("--cores 3")
    assert doctor_machine.memory(600e6, 2, int(2e9)).level == OK
    assert doctor_machine.memory(600e6, 2, None).level == OK
    assert [doctor_machine.disk(5e9, int(f)).level for f in (4e9, 6e9, 20e9)] == [PROBLEM, WARNING, OK]


def test_a_limit_of_the_control_group_counts_as_memory(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:       2000 kB\nMemFree: 1 kB\n")
    (tmp_path / "max").write_text("max\n")
    assert doctor_machine.total_memory(tmp_path / "meminfo", tmp_path / "max") == 2000 * 1024
    (tmp_path / "max").write_text("1000000\n")
    assert doctor_machine.total_memory(tmp_path / "meminfo", tmp_path / "max") == 1_000_000


@pytest.mark.parametrize(("name", "level"), [("plain", OK), ("a b", WARNING), ("é", WARNING)])
def test_blanks_and_other_letters_in_the_path(tmp_path, name, level):
    (tmp_path / name).mkdir()
    assert only(doctor_machine.path(tmp_path / name)).level == level


def test_the_deepest_mount_decides_whether_the_file_system_is_shared(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/b /home/me/disk xfs rw 0 0\n"
    )
    assert only(doctor_machine.file_system("/home/me/work", mounts)).level == WARNING
    assert only(doctor_machine.file_system("/home/me/disk/work", mounts)).text == "xfs"
    assert only(doctor_machine.file_system("/homes", mounts)).text == "ext4"
    assert only(doctor_machine.file_system("/", tmp_path / "none")).level == OK


@pytest.mark.parametrize(
    ("script", "plugin", "level", "words"),
    [
        (None, False, OK, "not installed"),
        ("echo 'Slurmctld(primary) at head is UP'", False, OK, "answers; to use it: pip install .[slurm]"),
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", True, WARNING, "by 10 s"),
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", False, OK, "no controller answers"),
        ("exec sleep 30", True, WARNING, "no answer within"),
    ],
)
def test_slurm_without_a_controller_delays_snakemake(tmp_path, monkeypatch, script, plugin, level, words):
    monkeypatch.setattr(doctor_machine, "PING_SECONDS", 0.5 if script and "sleep" in script else 30.0)
    monkeypatch.setattr(
        doctor_machine, "PLUGIN", "executor_plugin_of_this_test"
    )  # whatever is installed here
    if script:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    if plugin:
        (tmp_path / f"{doctor_machine.PLUGIN}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
    found = only(doctor_machine.slurm())
    assert found.level == level and words in found.text


def test_git_says_repository_and_changes(tmp_path):
    assert only(doctor_project.git(tmp_path)).level == PROBLEM
    made = projects.Project(tmp_path)
    made.git("init", "-q")
    (tmp_path / "a").write_text("1")
    made.commit("First")
    assert only(doctor_project.git(tmp_path)).level == OK
    (tmp_path / "a").write_text("2")
    found = only(doctor_project.git(tmp_path))
    assert found.level == WARNING and "commit: a;" in found.text


def test_dvc_its_analytics_and_folder_remotes(tmp_path):
    assert only(doctor_project.dvc(tmp_path)).level == PROBLEM
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    config = "[core]\n    remote = a\n"
    for name, url in (
        ("a", "../there"),
        ("b", tmp_path / "gone"),
        ("c", tmp_path / "file"),
        ("d", "s3://x/y"),
    ):
        config += f"['remote \"{name}\"']\n    url = {url}\n"
    (tmp_path / ".dvc/config").write_text(config)
    found = list(doctor_project.dvc(tmp_path))
    assert [(f.check, f.level) for f in found] == [
        ("dvc", OK),
        ("telemetry", WARNING),
        *[("remote", level) for level in (OK, WARNING, PROBLEM, OK)],
    ]
    (tmp_path / ".dvc/config").write_text("[core]\n    analytics = false\n")
    assert [f.level for f in doctor_project.dvc(tmp_path)] == [OK] * 3


@pytest.mark.slow
def test_remotes_are_read_as_dvc_writes_them(tmp_path):
    made = projects.Project(tmp_path)
    made.git("init", "-q")
    made.dvc("init", "-q")
    made.dvc("remote", "add", "-d", "storage", "shared")
    (tmp_path / "shared").mkdir()
    found = [f for f in doctor_project.dvc(tmp_path) if f.check == "remote"]
    assert only(found).level == OK and only(found).text == f"storage: {tmp_path / 'shared'}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_remote_that_cannot_be_written_is_a_problem(tmp_path):
    (tmp_path / "there").mkdir(mode=0o555)
    assert doctor_project.remote("a", str(tmp_path / "there"), tmp_path).level == PROBLEM


def test_the_link_to_the_profiles(tmp_path):
    assert "is missing" in only(doctor_project.profiles(tmp_path)).text
    (tmp_path / "profiles").write_text("workflow/profiles")  # as git leaves it where links are not allowed
    assert "is a plain file" in only(doctor_project.profiles(tmp_path)).text
    (tmp_path / "profiles").unlink()
    (tmp_path / "profiles").symlink_to("workflow/profiles")
    assert "leads nowhere" in only(doctor_project.profiles(tmp_path)).text
    (tmp_path / "workflow/profiles/default").mkdir(parents=True)
    (tmp_path / "workflow/profiles/default/config.yaml").write_text("")
    assert only(doctor_project.profiles(tmp_path)).level == OK


def test_a_file_from_the_future(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a").write_text("")
    assert only(doctor_project.clock(tmp_path)).level == OK
    later = time.time() + 3600
    os.utime(tmp_path / "runs/a", (later, later))
    assert only(doctor_project.clock(tmp_path)).level == WARNING


def test_checkpoints_that_are_left(tmp_path):
    assert only(doctor_project.checkpoints(tmp_path)).level == OK
    folder = tmp_path / "checkpoints/train_student/digits/copy/seed0"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"x" * 1000)
    assert "1 (0.0 MB)" in only(doctor_project.checkpoints(tmp_path)).text


def test_a_held_run_lock_names_its_process(tmp_path):
    lock = tmp_path / ".snakemake/attnprior.lock"
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.input.lock").write_text("")
    with Holder(HOLD, lock) as pid:
        assert holders(lock) == [pid] and alive(pid)
        found = only(doctor_locks.locks(tmp_path))
    assert found.level == WARNING and f"(process {pid})" in found.text
    assert holders(lock) == []


def test_snakemakes_lock_left_by_a_killed_run_or_by_somebody_else(tmp_path):
    assert only(doctor_locks.locks(tmp_path)).level == OK
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.output.lock").write_text("")
    assert "snakemake --unlock" in only(doctor_locks.locks(tmp_path)).text
    pid = ended()
    (tmp_path / ".snakemake/attnprior.lock").write_text(json.dumps({"pid": pid, "running": True}))
    found = only(doctor_locks.locks(tmp_path))
    assert found.level == WARNING and f"(process {pid}, ended)" in found.text


def test_dvcs_locks_name_a_living_or_an_ended_process(tmp_path):
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    with Holder(HOLD, tmp_path / ".dvc/tmp/lock") as pid:
        assert f"(process {pid})" in only(doctor_locks.locks(tmp_path)).text
    users = {"write": {}, "read": {"/data": [{"pid": ended(), "cmd": "dvc repro"}]}}
    (tmp_path / ".dvc/tmp/rwlock").write_text(json.dumps(users))
    assert only(doctor_locks.locks(tmp_path)).level == OK
    users["write"] = {"/data": {"pid": os.getpid(), "cmd": "dvc repro"}}
    (tmp_path / ".dvc/tmp/rwlock").write_text(json.dumps(users))
    assert str(os.getpid()) in only(doctor_locks.locks(tmp_path)).text
    (tmp_path / ".dvc/tmp/rwlock").write_text('{"write": ')
    assert only(doctor_locks.locks(tmp_path)).level == PROBLEM


def store(path: Path, version: str) -> None:
    with sqlite3.connect(path) as db:
        for name in ("experiments", "runs"):
            db.execute(f"create table {name} (id text)")
        db.execute("create table alembic_version (version_num text)")
        db.execute("insert into alembic_version values (?)", (version,))
    db.close()


def test_a_store_of_another_mlflow_locked_or_no_store_at_all(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert only(doctor_software.mlflow_store(tmp_path)).level == OK
    path = tmp_path / "mlflow.db"
    store(path, "0123456789ab")
    assert "a newer MLflow than the one installed" in only(doctor_software.mlflow_store(tmp_path)).text
    with Holder(EXCLUSIVE, path) as pid:
        found = only(doctor_software.mlflow_store(tmp_path))
    assert found.level == WARNING and f"process {pid} has locked it" in found.text
    path.write_text("no data base, but long enough to be taken for one " * 30)
    assert only(doctor_software.mlflow_store(tmp_path)).level == WARNING
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "runs go on without it" in only(doctor_software.mlflow_store(tmp_path)).text


@pytest.mark.slow
def test_the_store_that_the_installed_mlflow_makes_is_usable(tmp_path, monkeypatch):
    from attnprior.workflow import mlflow_open

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow_open.create_sqlite(mlflow_open.tracking_uri(tmp_path), tmp_path)
    assert only(doctor_software.mlflow_store(tmp_path)).level == OK


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("fetch_dataset/digits", "data/digits.run.json"),
        ("pretrain_teacher/digits/mae/seed1", "teachers/digits/mae/seed1/run.json"),
        ("fit_impulse/impulse3/seed0", "fits/impulse3/seed0/run.json"),
        ("train_student/digits/copy/seed2", "runs/digits/copy/seed2/run.json"),
        ("evaluate/digits/copy/seed2", "runs/digits/copy/seed2/evaluate.run.json"),
        ("compare/digits", "results/digits/run.json"),
        ("report/digits", "results/digits/report.run.json"),
    ],
)
def test_records_lie_where_the_rules_write_them(key, path):
    assert record_of(key) == path


def test_a_job_is_judged_by_its_record_settings_and_code(tmp_path):
    from attnprior.files import sha256

    settings = {"fits": {"a": {"steps": 3}}}
    assert judged(settings, "fit_impulse/a/seed0", {}, tmp_path) == "missing"
    folder = tmp_path / "fits/a/seed0"
    folder.mkdir(parents=True)
    (tmp_path / "src").mkdir()
    for name in ("src/code.py", "fits/a/seed0/fit"):
        (tmp_path / name).write_text("x")
    record = {
        "params": json.dumps({"fits.a": {"steps": 3}}),
        "inputs": {"src/code.py": sha256(tmp_path / "src/code.py"), "data/d": "0"},
        "outputs": {"fits/a/seed0/fit": "0"},
    }
    (folder / "run.json").write_text(json.dumps(record))
    assert judged(settings, "fit_impulse/a/seed0", {}, tmp_path) == "current"
    assert judged({"fits": {"a": {"steps": 4}}}, "fit_impulse/a/seed0", {}, tmp_path) == "stale"
    assert judged({"fits": {}}, "fit_impulse/a/seed0", {}, tmp_path) == "stale"
    (tmp_path / "src/code.py").write_text("y")
    assert judged(settings, "fit_impulse/a/seed0", {}, tmp_path) == "stale"
    (folder / "run.json").write_text("{")
    assert judged(settings, "fit_impulse/a/seed0", {}, tmp_path) == "stale"


def test_incomplete_marks_of_snakemake_are_counted(tmp_path):
    (tmp_path / ".snakemake/incomplete").mkdir(parents=True)
    (tmp_path / ".snakemake/incomplete/cnVucy94").write_text("")
    found = list(doctor_project.jobs(params.load(ROOT), tmp_path))
    assert [f.level for f in found] == [OK, WARNING] and "1 files marked incomplete" in found[1].text
