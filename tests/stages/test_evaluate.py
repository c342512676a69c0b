import json

import numpy as np
import pytest
import safetensors

from attnprior.errors import UserError
from attnprior.files import load_tensors, save_tensors
from attnprior.stages import evaluate
from tests.stages import fake_runs


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs/digits/impulse/seed0"
    fake_runs.write_predictions(folder / "predictions.safetensors", 0.5, 0)
    fake_runs.write_weights(folder / "weights.safetensors")
    return folder


def arguments(folder):
    return [
        *("--dataset", "digits", "--student", "impulse", "--seed", "0"),
        *(
            "--predictions",
            str(folder / "predictions.safetensors"),
            "--weights",
            str(folder / "weights.safetensors"),
        ),
        *("--metrics", str(folder / "metrics.json")),
        *fake_runs.stage_options(folder, {"evaluation": {"ece_bins": 15}}),
    ]


def rewrite(path, **changes):
    tensors, header = load_tensors(path, "numpy")
    save_tensors(path, {k: v for k, v in {**tensors, **changes}.items() if v is not None}, header)
    return tensors


def test_metrics_hold_test_val_parameters_and_compute(run):
    assert evaluate.main(arguments(run)) == 0
    got = json.loads((run / "metrics.json").read_text())
    t, _ = load_tensors(run / "predictions.safetensors", "numpy")
    hit = t["logits"].argmax(1) == t["labels"]
    assert got["test"]["top1"] == hit[t["split"] == 2].mean()
    assert got["val"]["top1"] == hit[t["split"] == 1].mean()
    assert (got["test"]["n"], got["val"]["n"]) == (60, 20)
    assert set(got["test"]["per_class"]) == set(fake_runs.CLASSES)
    assert got["parameters"] == 1234
    assert got["flops"] == {"own": 1.5e9, "teacher": 6.0e9, "fit": 0.5e9}
    end = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert end["values"]["test_top1"] == got["test"]["top1"]
    assert list(json.loads((run / "run.json").read_text())["outputs"]) == [str(run / "metrics.json")]


def test_only_rows_of_split_2_are_test(run):
    """All val and train rows are wrong and all test rows right, so any other row would show."""
    path = run / "predictions.safetensors"
    t, _ = load_tensors(path, "numpy")
    split = t["split"].copy()
    split[:5] = 0  # training rows, should a later version save them
    wrong = (t["labels"] + 1) % 4
    logits = np.eye(4, dtype=np.float32)[np.where(split == 2, t["labels"], wrong)] * 20
    rewrite(path, logits=logits, split=split)
    got = evaluate.evaluate(path, run / "weights.safetensors", 15)
    assert (got["test"]["top1"], got["test"]["n"]) == (1.0, 60)
    assert set(got["test"]["per_class"].values()) == {1.0}
    assert (got["val"]["top1"], got["val"]["n"]) == (0.0, 15)


def test_row_order_does_not_matter(run):
    path = run / "predictions.safetensors"
    before = evaluate.evaluate(path, run / "weights.safetensors", 15)
    t, _ = load_tensors(path, "numpy")
    order = np.random.default_rng(0).permutation(len(t["labels"]))
    rewrite(path, **{k: v[order] for k, v in t.items()})
    assert evaluate.evaluate(path, run / "weights.safetensors", 15) == before


def test_rerun_gives_equal_bytes(run):
    evaluate.main(arguments(run))
    first = (run / "metrics.json").read_bytes()
    evaluate.main(arguments(run))
    assert (run / "metrics.json").read_bytes() == first


def test_no_validation_split_gives_null(run):
    t, _ = load_tensors(run / "predictions.safetensors", "numpy")
    rewrite(run / "predictions.safetensors", **{k: v[t["split"] == 2] for k, v in t.items()})
    assert evaluate.main(arguments(run)) == 0
    assert json.loads((run / "metrics.json").read_text())["val"] is None


def test_no_heavy_package_is_imported(run):
    assert fake_runs.imported(
        "evaluate", arguments(run), ("torch", "sklearn", "scipy", "mlflow", "numpy")
    ) == ["numpy"]


def test_of_the_weights_no_tensor_is_read(run, monkeypatch):
    original, read = safetensors.safe_open, []

    class Watched:
        def __init__(self, path, **options):
            self.path, self.file = path, original(path, **options)

        def __enter__(self):
            self.opened = self.file.__enter__()
            return self

        def __exit__(self, *error):
            return self.file.__exit__(*error)

        def __getattr__(self, name):
            read.append((self.path.rpartition("/")[2], name))
            return getattr(self.opened, name)

    monkeypatch.setattr(safetensors, "safe_open", Watched)
    evaluate.evaluate(run / "predictions.safetensors", run / "weights.safetensors", 15)
    assert ("predictions.safetensors", "get_tensor") in read
    assert {n for f, n in read if f == "weights.safetensors"} == {"metadata"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"split": np.ones(80, np.int64)}, "no test images"),
        ({"labels": np.full(80, 4)}, "labels outside 0 to 3"),
        ({"labels": np.zeros(79, np.int64)}, "shapes do not fit"),
        ({"logits": np.full((80, 4), np.nan, np.float32)}, "training diverged"),
        ({"index": None}, "no tensor index"),
    ],
)
def test_unusable_predictions_are_one_line_errors(run, changes, expected):
    rewrite(run / "predictions.safetensors", **changes)
    with pytest.raises(UserError, match=expected) as e:
        evaluate.evaluate(run / "predictions.safetensors", run / "weights.safetensors", 15)
    assert "\n" not in str(e.value)


def test_truncated_predictions_end_with_one_error_line(run, capsys):
    path = run / "predictions.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert evaluate.main(arguments(run)) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (run / "metrics.json").exists()


def test_weights_of_a_teacher_are_refused(run):
    save_tensors(run / "weights.safetensors", {"w": np.zeros(2, np.float32)}, {"kind": "teacher"})
    with pytest.raises(UserError, match="not the weights of a student"):
        evaluate.evaluate(run / "predictions.safetensors", run / "weights.safetensors", 15)
