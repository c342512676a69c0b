"""What a study costs: against the files, records and headers of one that was made, and by hand."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnprior import files, provenance
from attnprior.data.rules import Numbers
from attnprior.errors import UserError
from attnprior.workflow import costs, devices, params, show
from attnprior.workflow.costs import Job
from attnprior.workflow.work import Work, images_of, student_work, teacher_work

ROOT = Path(__file__).resolve().parents[2]
CORE = devices.Device("core", 0.1, 0.5, 2.0, 3.0, 1.0, 1)


@pytest.fixture(scope="module")
def shipped():
    return params.load(ROOT)


def test_jobs_of_a_study_come_after_those_they_wait_for(shipped):
    jobs = costs.jobs_of(shipped, "digits")
    keys = [j.key for j in jobs]
    assert len(set(keys)) == len(keys)
    for i, job in enumerate(jobs):
        assert set(job.after) <= set(keys[:i])
    students = [j for j in jobs if j.work.rule == "train_student"]
    assert len(students) == sum(j.work.rule == "evaluate" for j in jobs)
    copied = next(j for j in students if j.key == "train_student/digits/copy/seed1")
    assert copied.after == ("fetch_dataset/digits", "pretrain_teacher/digits/mae_model_i/seed1")


def test_one_teacher_for_all_seeds_is_made_once(shipped):
    settings = copy.deepcopy(shipped)
    settings["studies"]["digits"]["teacher_seed"] = 3
    jobs = costs.jobs_of(settings, "digits")
    assert {j.key[-1] for j in jobs if j.work.rule in ("pretrain_teacher", "fit_impulse")} == {"3"}


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from attnprior.workflow import costs, devices, params\n"
        "s = params.load(); jobs = costs.jobs_of(s, 'digits'); devices.this_machine(s, devices.registry())\n"
        "assert not {'torch', 'snakemake', 'dvc', 'mlflow', 'scipy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_images_are_known_by_source_or_counted_in_the_file(shipped, tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    assert images_of(shipped, "digits") == Numbers(1200, 97, 500)
    settings = copy.deepcopy(shipped)
    settings["datasets"]["digits"] |= {"source": "folder", "path": "x.zip"}
    assert images_of(settings, "digits") is None
    jobs = costs.jobs_of(settings, "digits")
    assert "number of images of digits" in show.unknown(jobs)[0]
    assert not show.unknown(costs.jobs_of(shipped, "digits"))
    files.save_tensors("data/digits.safetensors", {"split": np.array([0, 0, 0, 1, 2, 2])}, {})
    assert images_of(settings, "digits") == Numbers(3, 1, 2)


def test_work_grows_with_what_it_is_made_of(shipped):
    more = copy.deepcopy(shipped)
    more["students"]["copy"]["labels"] = 400
    more["recipes"]["mae"]["epochs"] *= 2
    one, two = (student_work(s, "digits", "copy") for s in (shipped, more))
    assert two.flops == pytest.approx(2 * one.flops) and two.passes == one.passes
    one, two = (teacher_work(s, "digits", "mae_vit") for s in (shipped, more))
    assert two.flops == 2 * one.flops and two.blocks == 2 * one.blocks and two.memory == one.memory
    more["models"]["vit"]["depth"] = 40
    large = teacher_work(more, "digits", "mae_vit")
    assert large.memory > two.memory and large.files > 5 * two.files and large.checkpoint > 5 * two.checkpoint


def test_sharded_weights_and_moments_are_there_once(shipped):
    def memory(processes, sharded):
        more = copy.deepcopy(shipped)
        more["recipes"]["mae"] |= {"accumulate": 8, "processes": processes, "sharded": sharded}
        return teacher_work(more, "digits", "mae_vit").memory

    one = teacher_work(shipped, "digits", "mae_vit")
    state = 16 * one.checkpoint / 12  # a parameter, its gradient, and two moments
    assert memory(8, False) == 8 * one.memory
    beside = 8 * state / 4  # for a moment, the weights alone in each
    assert memory(8, True) == pytest.approx(8 * one.memory - 7 * state + beside, rel=1e-6)


def test_a_linear_probe_takes_the_forward_pass_of_its_encoder(shipped):
    frozen = copy.deepcopy(shipped)
    frozen["students"]["finetune"]["freeze"] = "encoder"
    one, probe = (student_work(s, "digits", "finetune") for s in (shipped, frozen))
    assert (
        2.5 * probe.flops < one.flops < 3.1 * probe.flops
    )  # its embedding and its norm have no input gradient
    assert probe.passes == one.passes and probe.files == one.files and probe.blocks < one.blocks / 3
    assert probe.memory < one.memory
    parameters = one.checkpoint // 12
    head = 10 * (shipped["models"][shipped["students"]["finetune"]["model"]]["embed_dim"] + 1)
    assert probe.checkpoint == 4 * parameters + 8 * head


def job(key: str, seconds: float, *after: str) -> Job:
    return Job(key, Work("evaluate", seconds=seconds), after)


def test_the_time_is_bound_by_the_places_or_by_the_longest_chain():
    engines = devices.ENGINES[0] + 4 * devices.ENGINES[1]
    machine = devices.Machine("m", CORE, jobs=2, records=0, startups={"evaluate": 0.0})
    wide = [job(k, 10) for k in "abcd"]
    assert devices.wall_seconds(wide, machine) == pytest.approx(20 + engines)
    chain = [job("a", 10), job("b", 10, "a"), job("c", 10, "b"), job("d", 1)]
    assert devices.wall_seconds(chain, machine) == pytest.approx(30 + engines)
    assert devices.wall_seconds([], machine) == 0


def test_seconds_are_operations_blocks_and_what_every_job_takes():
    work = Work("train_student", flops=100e9, passes=50e9, blocks=500)
    assert devices.compute_seconds(work, CORE) == pytest.approx(150 / 50 + 500 * 0.002 + 1.0)
    assert devices.startup_seconds(work, CORE) == 3.0
    assert devices.compute_seconds(Work("draw", seconds=7.0), CORE) == 7.0


def record(settings: dict, student: str, seconds: float, **changes) -> dict:
    keys = {f"students.{student}": settings["students"][student]}
    return {
        "rule": "train_student",
        "wildcards": {"dataset": "digits", "student": student, "seed": 0},
        "params": json.dumps(keys),
        "seconds": {"compute": seconds, "startup": 4.0, "total": seconds + 4.0},
        "device": provenance.device_name("cpu"),
        "threads": settings["compute"]["torch_threads"],
        "max_rss_mb": 1000,
        **changes,
    }


def test_this_machine_is_corrected_by_what_ran_on_it(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"cpu-core": CORE}
    assert devices.this_machine(shipped, known).records == 0
    then = copy.deepcopy(shipped)
    then["students"]["random"]["labels"] = 400  # the settings of the record count, not the present ones
    del then["students"]["random"]["overrides"]  # a key that was not there yet
    whole = {**shipped["students"]["random"], **then["students"]["random"]}
    known_then = {**then, "students": {**then["students"], "random": whole}}
    seconds = devices.compute_seconds(student_work(known_then, "digits", "random"), CORE)
    made = {
        "a/seed0": record(then, "random", 3 * seconds),
        "b/seed0": record(shipped, "copy", 1e6, device="cpu (another)"),
        "c/seed0": record(shipped, "copy", 1e6, threads=99),
    }
    for name, content in made.items():
        files.write_json(f"runs/digits/{name}/run.json", content)
    Path("runs/digits/d/seed0").mkdir(parents=True)
    Path("runs/digits/d/seed0/run.json").write_text("{")
    machine = devices.this_machine(shipped, known)
    assert machine.records == 1 and machine.factors["train_student"] == pytest.approx(3)
    work = student_work(shipped, "digits", "mimetic")
    expected = 4.0 + 3 * devices.compute_seconds(work, CORE)
    assert devices.seconds_on(machine, work) == pytest.approx(expected)
    stage = costs.stages_of([Job("a", work, ())], set(), machine.memory)[0]
    assert stage.memory == pytest.approx(1000 * 2**20, rel=0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: {}", "entry cpu-core"),
        ("devices: {cpu-core: {jobs: 1}}", "devices.cpu-core must have exactly the keys"),
        ("[]", "entry cpu-core"),
    ],
)
def test_a_wrong_device_registry_is_named_in_one_line(tmp_path, text, words):
    (tmp_path / "devices.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        devices.registry(tmp_path / "devices.yaml")


def test_the_shipped_registry_is_right_and_numbers_must_be_positive(tmp_path):
    shipped = devices.registry(ROOT / devices.REGISTRY)
    assert {"cpu-core", "laptop", "T4", "A100", "H100", "H200"} <= set(shipped)
    text = (ROOT / devices.REGISTRY).read_text().replace("utilisation: 0.41", "utilisation: -1")
    (tmp_path / "devices.yaml").write_text(text)
    with pytest.raises(UserError, match=r"cpu-core.utilisation is -1, must be a number above 0"):
        devices.registry(tmp_path / "devices.yaml")


def test_numbers_for_people():
    assert [show.operations(x) for x in (0, 2.5e7, 999.7e9, 15306.5e9)] == [
        *("-", "25 MFLOP", "1000 GFLOP", "15.3 TFLOP")
    ]
    assert [show.size(x) for x in (900, 50.63e6, 2e12)] == ["1 kB", "50.6 MB", "2 TB"]
    assert [show.span(x) for x in (9.6, 75, 3540, 3900, 200000)] == [
        *("10 s", "1 min 15 s", "59 min", "1 h 5 min", "2 days 7 h")
    ]


@pytest.mark.workflow
def test_a_finished_study_took_what_is_said(finished):
    """Operations as in the headers, files as on disk, nothing left to run, time from its own records."""
    found = json.loads(finished.attnprior("study", "show", "digits", "--json").stdout)
    total = found["stages"][-1]
    records = [*finished.root.glob("*/**/run.json"), *finished.root.glob("*/**/*.run.json")]
    assert (total["jobs"], total["to_run"], total["flops_to_run"]) == (len(records), 0, 0)
    counted = 0.0
    for pattern in ("runs/*/*/*/weights", "teachers/*/*/*/weights", "fits/*/*/fit"):
        for path in finished.root.glob(f"{pattern}.safetensors"):
            counted += files.read_header(path)["flops"]["own"]
    assert total["flops"] == pytest.approx(counted, rel=1e-12)
    made = [
        p for d in ("data", "teachers", "fits", "runs", "results") for p in (finished.root / d).rglob("*")
    ]
    assert total["files"] == pytest.approx(sum(p.stat().st_size for p in made if p.is_file()), rel=0.2)
    here = found["times"][0]
    assert here["from_records"] == len(records) and here["seconds_to_run"] == 0 < here["seconds"]


@pytest.mark.workflow
def test_a_changed_setting_is_seen_before_it_runs(project):
    project.put("students.copy.labels", 100)
    found = json.loads(project.attnprior("study", "show", "digits", "--json").stdout)
    to_run = {s["rule"]: s["to_run"] for s in found["stages"]}
    assert to_run["train_student"] == to_run["evaluate"] == 2 and to_run["pretrain_teacher"] == 0
    one = student_work(project.params(), "digits", "copy")
    assert found["stages"][-1]["flops_to_run"] == 2 * one.flops
    assert found["times"][0]["seconds_to_run"] > 0
