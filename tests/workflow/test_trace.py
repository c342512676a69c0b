"""`attnprior trace`: every file and every number of a finished study leads back to its data set."""

import csv
import json
import sqlite3
import statistics
import subprocess
from pathlib import Path

import pytest
from scipy import stats

from attnprior.errors import UserError
from attnprior.files import sha256
from attnprior.workflow import trace as command
from attnprior.workflow.commits import Commits
from attnprior.workflow.lineage import Lineage
from tests.workflow.project import Project

RESULTS = ("data", "teachers", "fits", "runs", "results")


@pytest.fixture
def here(finished, monkeypatch):
    """The finished project as the working directory, not to be changed, without MLflow."""
    monkeypatch.chdir(finished.root)
    monkeypatch.setenv("ATTNPRIOR_TRACKING", "off")
    return finished


@pytest.fixture
def changed(project, monkeypatch):
    """The same to be changed."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("ATTNPRIOR_TRACKING", "off")
    return project


@pytest.fixture
def told(capsys):
    def tell(*target: str, status: int = 0, **options) -> str:
        assert command.trace(list(target), **{"code": False, "as_json": False, **options}) == status
        return capsys.readouterr().out

    return tell


def test_every_result_file_leads_to_its_job_and_down_to_the_data_set(here):
    lineage = Lineage()
    files = [p for d in RESULTS for p in Path(d).rglob("*") if p.is_file() and p.name != ".gitignore"]
    assert len(files) > 50
    for path in map(Path.as_posix, files):
        job = lineage.producer(path)
        assert job is not None, path
        chain = lineage.chain(job)
        assert not [p for made in chain.values() for p in made.problems]
        assert path.startswith("fits/") or "fetch_dataset/digits" in chain


def test_chain_of_a_run_names_each_job_once_with_settings_code_hashes_and_machine(here, told):
    found = json.loads(told("runs/digits/copy/seed1/metrics.json", as_json=True))
    assert set(found["jobs"]) == {
        "evaluate/digits/copy/seed1",
        "train_student/digits/copy/seed1",
        "pretrain_teacher/digits/mae_model_i/seed1",
        "fetch_dataset/digits",
    }
    assert found["problems"] == [] and found["file"]["recorded_by_dvc"] == "arm@digits-copy"
    training = found["jobs"]["train_student/digits/copy/seed1"]
    assert training["wildcards"]["seed"] == 1
    assert training["settings"]["students.copy"] == here.params()["students"]["copy"]
    teacher = "teachers/digits/mae_model_i/seed1/weights.safetensors"
    assert {
        "path": teacher,
        "sha256": sha256(teacher),
        "job": "pretrain_teacher/digits/mae_model_i/seed1",
    } in (training["inputs"])
    assert training["code"]["files"]["src/attnprior/transfer.py"] == sha256("src/attnprior/transfer.py")
    assert training["versions"]["torch"] and training["device"].startswith("cpu") and training["threads"] == 1
    text = told("runs/digits/copy/seed1/metrics.json")
    assert text.count("started ") == 4 and text.count("fetch_dataset/digits  → digits.safetensors") == 2
    assert text.count("(above)") == 1
    assert "4 jobs; every file on the way is as its job wrote it" in text


def expected(arm: str, baseline: str, seeds: list[int]) -> dict[str, float]:
    """Return the numbers of an arm, computed here from the metrics.json of its runs."""

    def of(student, *keys):
        out = []
        for k in seeds:
            node = json.loads(Path(f"runs/digits/{student}/seed{k}/metrics.json").read_text())
            for key in keys:
                node = node[key]
            out.append(node)
        return out

    found: dict[str, float] = {"seeds": len(seeds), "parameters": of(arm, "parameters")[0]}
    for m in ("top1", "nll", "ece"):
        x = of(arm, "test", m)
        found |= {f"{m}_mean": statistics.mean(x), f"{m}_std": statistics.stdev(x)}
        half = stats.t.ppf(0.975, len(x) - 1) * statistics.stdev(x) / len(x) ** 0.5
        found |= {f"{m}_low": statistics.mean(x) - half, f"{m}_high": statistics.mean(x) + half}
    found |= {f"gflop_{k}": statistics.mean(of(arm, "flops", k)) / 1e9 for k in ("own", "teacher")}
    if arm != baseline:
        x, y = of(arm, "test", "top1"), of(baseline, "test", "top1")
        found["difference"] = statistics.mean(x) - statistics.mean(y)
        found["difference_p"] = float(stats.ttest_rel(x, y).pvalue)
    return found


def test_every_number_of_the_table_is_made_again_from_the_values_shown(here, told):
    with open("results/digits/table.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 3
    for row in rows:
        cells = json.loads(told("digits", row["arm"], as_json=True))["cells"]
        shown = {c["column"]: c for c in cells}
        numbers = {k: float(v) for k, v in row.items() if v and k not in ("dataset", "panel", "arm", "role")}
        assert {k: c["value"] for k, c in shown.items()} == numbers
        assert all(c["recomputed"] == c["value"] for c in cells)
        for column, value in expected(row["arm"], "random", [0, 1]).items():
            assert shown[column]["value"] == pytest.approx(value, rel=1e-8, abs=1e-12), column
        mean = shown["top1_mean"]
        assert statistics.mean(v["value"] for v in mean["values"]) == pytest.approx(mean["value"])
        assert [v["path"] for v in mean["values"]] == [
            f"runs/digits/{row['arm']}/seed{k}/metrics.json" for k in (0, 1)
        ]


def test_chain_of_a_number_holds_the_runs_it_is_made_from_only(here, told):
    jobs = json.loads(told("digits", "impulse", "top1_mean", as_json=True))["jobs"]
    assert {j.split("/")[2] for j in jobs if j.startswith("train_student")} == {"impulse"}
    jobs = json.loads(told("digits", "impulse", "difference_p", as_json=True))["jobs"]
    assert {j.split("/")[2] for j in jobs if j.startswith("train_student")} == {"impulse", "random"}
    jobs = json.loads(told("digits", "impulse", "difference_p_holm", as_json=True))["jobs"]
    assert {j.split("/")[2] for j in jobs if j.startswith("train_student")} == {"impulse", "random", "copy"}


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("results/digits/table.csv:impulse:top1_mean", 1),
        ("results/digits/table.csv:model_i/impulse:top1", 4),
        ("results/digits/results.csv:impulse/seed0:top1", 2),  # test and val
        ("results/digits/results.csv:impulse/seed0/test:accuracy/3", 1),
        ("results/digits/comparisons.csv:impulse/random/top1:p", 1),
    ],
)
def test_cells_of_all_tables_have_names(here, told, target, count):
    cells = json.loads(told(target, as_json=True))["cells"]
    assert len(cells) == count
    assert all(c["recomputed"] == c["value"] and c["values"] for c in cells)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (["digits", "impulze"], "did you mean 'impulse'"),
        (["digits", "impulse", "top2_mean"], "did you mean 'top1_mean'"),
        (["digit", "impulse"], "did you mean 'digits'"),
        (["results/digits/table.md:impulse:top1_mean"], "table.csv, results.csv, comparisons.csv"),
        (["params.yaml"], "params.yaml: known to no job"),
        (["nothing.csv"], "nothing.csv: no such file"),
        (["runs"], "is a folder"),
        (["/etc/hosts"], "outside of this checkout"),
        (["a", "b", "c", "d"], "trace takes"),
    ],
)
def test_what_cannot_be_traced_is_one_line(here, told, target, said):
    with pytest.raises(UserError) as caught:
        told(*target)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_changed_file_is_named_with_the_job_that_wrote_it(changed, told):
    metrics = Path("runs/digits/impulse/seed0/metrics.json")
    value = json.loads(metrics.read_text())
    value["test"]["top1"] += 0.01
    metrics.write_text(json.dumps(value))
    said = told(str(metrics), status=1)
    assert "! changed after evaluate/digits/impulse/seed0 wrote it" in said
    said = told("digits", "impulse", "top1_mean", status=1)
    assert (
        "runs/digits/impulse/seed0/metrics.json was changed after evaluate/digits/impulse/seed0 wrote" in said
    )
    assert "cannot be made again" in said
    assert told("runs/digits/impulse/seed1/metrics.json")  # the others are in order


def test_a_changed_number_is_not_what_its_runs_give(changed, told):
    table = Path("results/digits/table.csv")
    row = next(r for r in csv.DictReader(table.read_text().splitlines()) if r["arm"] == "impulse")
    table.write_text(table.read_text().replace(row["top1_mean"], "0.999"))
    said = told("digits", "impulse", "top1_mean", status=1)
    assert f"impulse:top1_mean is 0.999, its runs give {float(row['top1_mean'])}" in said


def test_an_input_made_again_since_is_not_taken_for_the_one_that_was_read(changed, told):
    record = Path("teachers/digits/mae_model_i/seed0/run.json")
    weights = record.with_name("weights.safetensors")
    weights.write_bytes(weights.read_bytes() + b" ")
    value = json.loads(record.read_text())
    value["outputs"][weights.as_posix()] = sha256(weights)
    record.write_text(json.dumps(value))
    said = told("runs/digits/copy/seed0/weights.safetensors", status=1)
    teacher = "pretrain_teacher/digits/mae_model_i/seed0"
    assert f"train_student/digits/copy/seed0 read another {weights} than {teacher} wrote last" in said


def test_a_file_that_is_not_here_but_recorded_says_how_to_get_it(changed, told):
    subprocess.run(["rm", "-rf", "runs/digits/copy"], check=True)
    with pytest.raises(UserError, match=r"stage arm@digits-copy\); `dvc pull`"):
        told("runs/digits/copy/seed0/weights.safetensors")


def test_commits_tell_which_files_were_not_committed(tmp_path, monkeypatch):
    project = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    project.git("init", "-q")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)
    commit = project.commit("First")
    (tmp_path / "b.py").write_text("changed")
    code = {name: sha256(name) for name in ("a.py", "b.py")}
    found = Commits().about(f"{commit}-dirty", code)
    assert (found["id"], found["dirty"], found["other_code"], found["in_head"]) == (
        commit,
        True,
        ["b.py"],
        False,
    )
    assert found["title"].endswith(" First")
    project.commit("Second")
    found = Commits().about(f"{commit}-dirty", code)
    assert (found["other_code"], found["in_head"]) == (["b.py"], True)
    assert Commits().about("0" * 40, code)["other_code"] is None
    assert Commits().about(None, code)["id"] is None


def test_dirty_code_is_said(here, told, monkeypatch):
    code = {**Lineage().producer("data/digits.safetensors").code}
    record = json.loads(Path("data/digits.run.json").read_text())
    about = Commits().about(record["commit"], code)
    assert about["other_code"] == [] and about["title"]
    assert f"commit: {about['id'][:12]} ({about['title']})" in told("data/digits.safetensors")


def test_no_store_is_made_by_asking(here, told, monkeypatch):
    monkeypatch.setenv("ATTNPRIOR_TRACKING", "on")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "MLflow" not in told("data/digits.safetensors")
    assert not Path("mlflow.db").exists()


@pytest.mark.slow
def test_the_mlflow_run_of_a_job_is_named(changed, told, monkeypatch):
    monkeypatch.setenv("ATTNPRIOR_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    changed.attnprior("track")
    found = json.loads(told("runs/digits/copy/seed0/metrics.json", as_json=True))
    run = found["jobs"]["train_student/digits/copy/seed0"]["mlflow"]
    with sqlite3.connect("mlflow.db") as store:
        name = store.execute("select name from runs where run_uuid = ?", (run["id"],)).fetchone()
    assert name == ("train_student/digits/copy/seed000",)  # so that MLflow sorts seeds by number
    assert run["url"].endswith(f"/runs/{run['id']}")
    assert all("mlflow" in fact for fact in found["jobs"].values())
