import csv
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import attnprior
from attnprior.files import load_tensors
from attnprior.stages import compare, draw
from tests.stages import fake_runs

OUT = Path("results/digits/figures")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A study of three seeds with its figures, and the command line that made them; never changed."""
    root = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        argv = make(fake_runs.study())
        assert draw.main(argv) == 0
    return root, argv


@pytest.fixture
def finished(drawn, monkeypatch):
    """The drawn study as working directory; its command line."""
    monkeypatch.chdir(drawn[0])
    return drawn[1]


def make(made, impulse=True):
    """Make runs and tables, and return the command line of the stage."""
    folders = [os.path.relpath(f) for f in fake_runs.make_runs(Path.cwd(), made)]
    common = ["--params", json.dumps(fake_runs.params(made)), "--threads", "1", "--study", "digits"]
    predictions = ["--predictions", *(f"{f}/predictions.safetensors" for f in folders)]
    argv = [*common, "--out-dir", "results/digits", "--run-json", "results/digits/run.json", *predictions]
    argv += ["--events", "logs/compare.jsonl", "--metrics", *(f"{f}/metrics.json" for f in folders)]
    assert compare.main(argv) == 0
    argv = [*common, "--tables-dir", "results/digits", "--out-dir", str(OUT), *predictions]
    argv += ["--run-json", "results/digits/draw.run.json", "--events", "logs/draw.jsonl"]
    fake_runs.write_maps(Path("results/digits/maps.safetensors"), made)
    argv += ["--maps", "results/digits/maps.safetensors"]
    if not impulse:
        return [*argv, "--fit", "--weights"]
    fit, weights = (
        Path("fits/impulse3/seed0/fit.safetensors"),
        Path("runs/digits/impulse/seed0/weights.safetensors"),
    )
    fake_runs.write_impulse(fit, weights)
    return [*argv, "--fit", str(fit), "--weights", str(weights)]


def captions():
    return json.loads((OUT / "captions.json").read_text())["captions"]


def test_every_figure_is_there_as_svg_and_png_and_twice_the_same_bytes(finished):
    first = {p.name: p.read_bytes() for p in OUT.iterdir()}
    assert {f"{n}.{e}" for n in fake_runs.FIGURES for e in ("svg", "png")} < set(first)
    assert {"captions.json", "val_top1.csv", "val_loss.csv", "confusion.csv"} < set(first)
    for name in fake_runs.FIGURES:
        assert ET.fromstring(first[f"{name}.svg"]).tag.endswith("svg")
        assert first[f"{name}.png"].startswith(b"\x89PNG")
    assert draw.main(finished) == 0
    assert {p.name: p.read_bytes() for p in OUT.iterdir()} == first


def test_own_settings_of_matplotlib_change_nothing(finished):
    import matplotlib

    first = (OUT / "accuracy.svg").read_bytes()
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "none", "axes.facecolor": "red"}):
        assert draw.main(finished) == 0
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert (OUT / "accuracy.svg").read_bytes() == first


def test_arms_on_several_data_sets_are_told_apart(project):
    made = fake_runs.study(seeds=(0, 1), datasets=["digits", "letters"])
    made["panels"].pop("vit")
    assert draw.main(make(made, impulse=False)) == 0
    header, first, *_ = (OUT / "confusion.csv").read_text().splitlines()
    assert header.split(",")[:2] == ["actual", "digits/random"]
    assert "letters/copy_other" in header
    assert first.split(",")[0].startswith("digits/")
    assert "60 test images of digits, 60 test images of letters" in captions()["accuracy"]


def test_no_date_and_no_version_stands_in_the_files(finished):
    for path in OUT.glob("*.svg"):
        assert not re.search(r"20\d\d-\d\d|dc:date|matplotlib v", path.read_text().lower())
    for path in OUT.glob("*.png"):
        assert b"Software" not in path.read_bytes()


def test_captions_say_how_many_runs_and_how_they_were_measured(finished):
    about = json.loads((OUT / "captions.json").read_text())
    found = about["captions"]
    assert set(found) == set(about["titles"]) == set(fake_runs.FIGURES)
    assert "the 3 seeds" in found["accuracy"]
    assert "95 % Student t interval" in found["accuracy"]
    assert "60 test images of digits, measured once after the last epoch" in found["accuracy"]
    assert "smallest to the largest seed" in found["curves"]
    assert "summed over 3 seeds" in found["confusion"]
    assert "softmax(gamma (1 - alpha)^2 P W_q W_k^T P^T)" in found["impulse"]
    assert about["left_out"] == ["labels"]
    assert "Teacher and fit seed = student seed" in found["accuracy"]
    text = (OUT / "captions.json").read_text()
    assert text.isascii()
    assert "\\" not in text
    assert text.index('"captions"') < text.index(
        '"titles"'
    )  # Snakemake's report reads captions between quotation marks


def test_redundancy_csv_has_a_row_per_network_layer_and_tolerance(finished):
    with open(OUT / "redundancy.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    names = fake_runs.students(fake_runs.study())
    assert len(rows) == (len(names) + 1) * 2 * 2  # a teacher; layers; tolerances
    assert [r["arm"] for r in rows if r["kind"] == "teacher"] == ["mae"] * 4
    strict = f"{2**-23 * 64:.10g}"
    assert [list(r.values()) for r in rows[:4]] == [
        ["digits", "random", "student", "0", "5", "1", "64", "16", "0.01", "5.0", "5", "5", "3", "1"],
        ["digits", "random", "student", "0", "5", "1", "64", "16", strict, "5.0", "5", "5", "3", "1"],
        ["digits", "random", "student", "0", "5", "2", "64", "16", "0.01", "9.0", "8", "10", "3", "0"],
        ["digits", "random", "student", "0", "5", "2", "64", "16", strict, "13.0", "12", "16", "3", "0"],
    ]
    assert "No arm of this study has filters: f = 3 is an example" in captions()["redundancy"]


def test_filter_sizes_are_those_of_the_fits_and_convmixers_of_the_study(project):
    argv = make(fake_runs.study(seeds=(0,)), impulse=False)
    given = json.loads(argv[1])
    given["students.impulse"]["init"] |= {"fit": "wide"}
    given["students.mimetic"] |= {"init": {"source": "filters", "kind": "random"}, "model": "mixer"}
    given |= {"fits.wide": {"filter_size": 7}, "models.mixer": {"kernel_size": 5}}
    assert draw.main(["--params", json.dumps(given), *argv[2:]]) == 0
    with open(OUT / "redundancy.csv", newline="") as f:
        assert {r["filter_size"] for r in csv.DictReader(f)} == {"5", "7"}
    assert "f is that of the impulse fits and ConvMixers" in captions()["redundancy"]


def test_confusion_matrices_hold_every_prediction_with_the_true_class_in_rows(finished):
    made = fake_runs.study()
    paths = {
        k: Path("runs", k[0], k[1], f"seed{k[2]}", "predictions.safetensors")
        for k in draw.expected_runs(draw.build_study(made, "studies.digits"))
    }
    counts, names, rows = draw.confusion_counts(draw.build_study(made, "studies.digits"), paths)
    expected = np.zeros((4, 4), int)
    for seed in (0, 1, 2):
        t, _ = load_tensors(paths["digits", "impulse", seed], "numpy")
        for logits, label in zip(t["logits"][t["split"] == 2], t["labels"][t["split"] == 2], strict=True):
            expected[label, logits.argmax()] += 1
    np.testing.assert_array_equal(counts["digits", "impulse"], expected)
    assert names == {"digits": fake_runs.CLASSES}
    assert len(rows) == 60
    t, _ = load_tensors(paths["digits", "impulse", 0], "numpy")
    given = [fake_runs.CLASSES[c] for c in t["logits"][t["split"] == 2].argmax(1)]
    assert [r["impulse"] for r in rows] == given
    assert [r["actual"] for r in rows] == [fake_runs.CLASSES[c] for c in t["labels"][t["split"] == 2]]


def test_curves_in_the_tables_are_means_over_seeds(finished):
    with open(OUT / "val_top1.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["epoch", *fake_runs.students(fake_runs.study())]
    assert [int(r["epoch"]) for r in rows] == list(range(1, 13))
    values = []
    for seed in (0, 1, 2):
        with open(f"runs/digits/mimetic/seed{seed}/history.csv", newline="") as f:
            values.append(float(list(csv.DictReader(f))[5]["val_top1"]))
    assert float(rows[5]["mimetic"]) == pytest.approx(np.mean(values), abs=1e-9)


def test_a_study_without_an_impulse_arm_says_that_the_figure_is_left_out(project):
    assert draw.main(make(fake_runs.study(), impulse=False)) == 0
    assert json.loads((OUT / "captions.json").read_text())["left_out"] == ["labels", "impulse"]
    assert "no student of this study starts from an impulse fit" in captions()["impulse"]


def test_one_seed_is_drawn_without_interval_or_band_and_says_so(project):
    assert draw.main(make(fake_runs.study(seeds=(0,)), impulse=False)) == 0
    for name in ("accuracy", "curves"):
        assert "One seed: no interval, no test" in captions()[name]


def test_label_budgets_are_a_line_per_family_whose_values_stand_in_labels_csv(project):
    assert draw.main(make(fake_runs.labels_study(), impulse=False)) == 0
    assert "labels" not in json.loads((OUT / "captions.json").read_text())["left_out"]
    said = captions()["labels"]
    assert "random, copy, vit_copy" in said
    assert "95 % Student t intervals" in said
    header, *rows = csv.reader((OUT / "labels.csv").read_text().splitlines())
    assert header == ["labels", "random", "copy", "vit_copy"]
    assert [r[0] for r in rows] == ["50", "200", "1400"]
    with open("results/digits/table.csv", newline="") as f:
        means = {r["arm"]: r["top1_mean"] for r in csv.DictReader(f)}
    assert rows[1][1:] == [means["random"], means["copy"], means["vit_copy"]]
    assert rows[2][2] == means["copy_1400"]


def test_one_seed_of_label_budgets_says_so(project):
    assert draw.main(make(fake_runs.labels_study(seeds=(3,)), impulse=False)) == 0
    assert "One seed: no interval, no test" in captions()["labels"]


def test_a_study_without_label_budgets_says_that_the_figure_is_left_out(finished):
    assert "no arms of this study differ in their number of labels alone" in captions()["labels"]
    assert (OUT / "labels.csv").read_text() == "labels\n"


def test_without_a_validation_split_the_curves_are_left_out(project):
    argv = make(fake_runs.study(seeds=(0, 1)), impulse=False)
    for path in Path("runs").rglob("history.csv"):
        path.write_text("epoch,loss\n0,1.0\n1,0.5\n")
    assert draw.main(argv) == 0
    assert "no run has a validation split" in captions()["curves"]
    assert (OUT / "val_loss.csv").read_text() == "epoch\n"


def test_the_record_names_everything_that_was_read_and_written(project):
    argv = make(fake_runs.study(seeds=(0, 1)), impulse=False)
    draw.main(argv)
    record = json.loads(Path("results/digits/draw.run.json").read_text())
    data = [p for p in record["inputs"] if not p.startswith("src/")]
    assert sorted(Path(p).name for p in data) == sorted(
        ["results.csv", "table.csv", "maps.safetensors", *["history.csv", "predictions.safetensors"] * 12]
    )
    assert {Path(p).name for p in record["outputs"]} == {p.name for p in OUT.iterdir()}


def test_a_broken_history_is_a_one_line_error(project, capsys):
    argv = make(fake_runs.study(seeds=(0, 1)), impulse=False)
    Path("runs/digits/random/seed1/history.csv").write_text("epoch,loss\n0,x\n")
    assert draw.main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: runs/digits/random/seed1/history.csv")
    assert err.count("\n") == 1


def test_torch_is_not_imported(project):
    argv = make(fake_runs.study(seeds=(0, 1)), impulse=False)
    assert fake_runs.imported("draw", argv, ("torch", "sklearn", "mlflow", "matplotlib.pyplot")) == []


@pytest.mark.parametrize("how", ["missing", "truncated", "foreign"])
@pytest.mark.parametrize(
    "path",
    [
        "results/digits/results.csv",
        "results/digits/table.csv",
        "results/digits/maps.safetensors",
        "runs/digits/impulse/seed1/predictions.safetensors",
        "runs/digits/impulse/seed1/history.csv",
        "fits/impulse3/seed0/fit.safetensors",
        "runs/digits/impulse/seed0/weights.safetensors",
    ],
)
def test_a_bad_input_is_one_line_that_names_it_and_nothing_is_drawn(
    drawn, tmp_path, monkeypatch, path, how, capsys
):
    shutil.copytree(drawn[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    before = {p: p.read_bytes() for p in OUT.iterdir()}
    fake_runs.spoil(path, how)
    assert draw.main(drawn[1]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {path}: ")
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in OUT.iterdir()} == before


@pytest.mark.parametrize("what", ["study", "arm", "seed"])
def test_tables_of_another_study_are_refused(drawn, tmp_path, monkeypatch, what, capsys):
    shutil.copytree(drawn[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    path = Path("results/digits/results.csv")
    old, new = {"study": ("digits,digits,", "other,digits,"), "arm": (",mimetic,", ",mimic,")}.get(
        what, (",arm,2,", ",arm,4,")
    )
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert draw.main(drawn[1]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "error: results/digits/results.csv: not of study digits as params.yaml has it: it lacks"
    )
    assert err.count("\n") == 1


def test_maps_of_another_study_are_refused(drawn, tmp_path, monkeypatch, capsys):
    shutil.copytree(drawn[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    tensors, header = load_tensors("results/digits/maps.safetensors", "numpy")
    fake_runs.save_tensors("results/digits/maps.safetensors", tensors, {**header, "study": "other"})
    assert draw.main(drawn[1]) == 1
    assert "error: results/digits/maps.safetensors: no maps of study digits" in capsys.readouterr().err


def test_neither_display_nor_another_back_end_is_needed(finished):
    first = (OUT / "accuracy.png").read_bytes()
    os.unlink(OUT / "accuracy.png")
    script = "import sys; from attnprior.stages.draw import main; sys.exit(main(sys.argv[1:]))"
    env = {k: v for k, v in os.environ.items() if k != "DISPLAY"}
    env |= {"MPLBACKEND": "nonsense", "PYTHONPATH": str(Path(attnprior.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script, *finished], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (OUT / "accuracy.png").read_bytes() == first


def test_without_matplotlib_one_line_says_so(finished, monkeypatch, capsys):
    before = {p: p.read_bytes() for p in OUT.iterdir()}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw.main(finished) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: figures need matplotlib, which cannot be imported")
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in OUT.iterdir()} == before
