import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student_t
from scipy.stats import ttest_rel

from attnprior.errors import UserError
from attnprior.files import load_tensors, save_tensors
from attnprior.stages import compare
from tests.stages import fake_runs

SCALED = ("results.csv", "comparisons.csv", "table.csv", "table.md", "table.tex", "metrics.json")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(made, folders, out="results/digits"):
    return [
        *("--study", "digits", "--out-dir", out),
        *("--metrics", *(f"{f}/metrics.json" for f in folders)),
        *("--predictions", *(f"{f}/predictions.safetensors" for f in folders)),
        *("--params", json.dumps({"studies.digits": made}), "--threads", "1"),
        *("--run-json", f"{out}/run.json", "--events", "logs/compare/digits.events.jsonl"),
    ]


def make(made=None):
    made = made or fake_runs.study()
    folders = [os.path.relpath(f) for f in fake_runs.make_runs(Path.cwd(), made)]
    return made, folders


def rows(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def accuracies(student, seeds=(0, 1, 2)):
    return [
        json.loads(Path(f"runs/digits/{student}/seed{k}/metrics.json").read_text())["test"]["top1"]
        for k in seeds
    ]


def test_tables_hold_what_the_runs_measured(project):
    made, folders = make()
    assert compare.main(arguments(made, folders)) == 0
    table = {r["arm"]: r for r in rows("results/digits/table.csv")}
    assert list(table) == fake_runs.students(made)
    for arm, row in table.items():
        values = accuracies(arm)
        assert float(row["top1_mean"]) == pytest.approx(np.mean(values), abs=1e-9)
        assert float(row["top1_std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-9)
        half = student_t.ppf(0.975, 2) * np.std(values, ddof=1) / 3**0.5
        if row["top1_low"]:
            assert float(row["top1_high"]) == pytest.approx(np.mean(values) + half, abs=1e-9)
        shown = tuple(row[k] for k in ("seeds", "gflop_own", "gflop_teacher", "gflop_fit"))
        assert shown == ("3", "1.5", "6.0", "0.5")
    assert table["copy_other"]["role"] == "control"
    assert table["random"]["difference"] == ""
    expected = np.subtract(accuracies("impulse"), accuracies("random"))
    assert float(table["impulse"]["difference"]) == pytest.approx(expected.mean(), abs=1e-9)
    tree = json.loads(Path("results/digits/metrics.json").read_text())
    assert tree["model_i"]["impulse"]["top1_mean"] == float(table["impulse"]["top1_mean"])
    assert "difference" not in tree["model_i"]["random"]


def test_results_are_tidy_and_complete(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    found = rows("results/digits/results.csv")
    assert list(found[0]) == ["study", "dataset", "panel", "arm", "role", "seed", "split", "metric", "value"]
    keys = [tuple(r[k] for k in ("panel", "arm", "seed", "split", "metric")) for r in found]
    assert len(set(keys)) == len(keys)
    test = [r for r in found if r["split"] == "test" and r["metric"] == "top1"]
    assert len(test) == 6 * 3
    assert {r["metric"] for r in found} >= {
        "top1",
        "nll",
        "ece",
        "accuracy/nought",
        "flops_teacher",
        "flops_fit",
        "parameters",
    }
    got = [float(r["value"]) for r in test if r["arm"] == "impulse"]
    assert got == pytest.approx(accuracies("impulse"), abs=1e-9)


def test_comparisons_are_paired_by_seed_and_corrected_within_a_panel(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    found = [r for r in rows("results/digits/comparisons.csv") if r["metric"] == "top1"]
    assert len(found) == 4 * 3 // 2 + 1  # every pair of the first panel and of the second
    family = [r for r in found if r["panel"] == "model_i" and r["family"] == "baseline"]
    assert [(r["arm"], r["reference"]) for r in family] == [
        (a, "random") for a in ("mimetic", "impulse", "copy_other")
    ]
    p = [ttest_rel(accuracies(r["arm"]), accuracies("random")).pvalue for r in family]
    assert [float(r["p"]) for r in family] == pytest.approx(p, rel=1e-6)
    order, running = np.argsort(p), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (3 - rank) * p[i]))
        assert float(family[i]["p_holm"]) == pytest.approx(running, rel=1e-6)
    alone = next(r for r in found if r["panel"] == "vit")
    assert alone["p_holm"] == alone["p"]


def test_bootstrap_is_the_paired_difference_of_seeds_and_images(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    row = next(r for r in rows("results/digits/comparisons.csv") if r["arm"] == "impulse")

    def hits(student):
        out = []
        for k in range(3):
            t, _ = load_tensors(f"runs/digits/{student}/seed{k}/predictions.safetensors", "numpy")
            out.append((t["logits"].argmax(1) == t["labels"])[t["split"] == 2])
        return np.array(out, float)

    d, rng, plain = hits("impulse") - hits("random"), np.random.default_rng(1), []
    for _ in range(4000):
        seeds, images = rng.integers(3, size=3), rng.integers(60, size=60)
        plain.append(d[np.ix_(seeds, images)].mean())
    expected = np.quantile(plain, [0.025, 0.975])
    assert [float(row["bootstrap_low"]), float(row["bootstrap_high"])] == pytest.approx(expected, abs=0.02)


def test_rerun_in_any_order_of_files_gives_equal_bytes(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    compare.main(arguments(made, folders[::-1], "results/again"))
    for name in SCALED:
        assert (project / "results/digits" / name).read_bytes() == (
            project / "results/again" / name
        ).read_bytes()
    outputs = json.loads(Path("results/digits/run.json").read_text())["outputs"]
    assert sorted(outputs) == sorted(f"results/digits/{n}" for n in SCALED)


def test_markdown_names_protocol_n_and_units(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    text = (project / "results/digits/table.md").read_text()
    assert "test measured once after the last epoch; validation for monitoring only" in text
    assert "60 test images" in text
    assert "n = 3 seeds" in text
    assert "Teacher and fit seed = student seed, so spread and intervals include" in text
    line = next(x for x in text.splitlines() if x.startswith("| impulse |"))
    values = accuracies("impulse")
    assert f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f} (3)" in line
    assert "random (baseline)" in text
    assert "copy\\_other (control)" in text


def test_a_fixed_teacher_seed_is_said(project):
    made, folders = make(fake_runs.study(teacher_seed=0))
    compare.main(arguments(made, folders))
    assert "One teacher: all student seeds share" in (project / "results/digits/table.md").read_text()


def test_latex_is_escaped_and_every_row_has_all_columns(project):
    made, folders = make()
    compare.main(arguments(made, folders))
    text = (project / "results/digits/table.tex").read_text()
    assert r"\caption{Model I\_1 \& 100 \%}" in text
    assert r"copy\_other (control)" in text
    assert not set("±−–<>") & set(text)
    body = [x for x in text.splitlines() if x.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", x)) for x in body} == {9}
    for line in body:
        assert not re.search(r"(?<!\\)[%#_]", line)


def test_one_seed_gives_tables_without_intervals(project):
    made, folders = make(fake_runs.study(seeds=(4,)))
    assert compare.main(arguments(made, folders)) == 0
    row = next(r for r in rows("results/digits/table.csv") if r["arm"] == "impulse")
    assert (row["top1_std"], row["top1_low"], row["difference_low"], row["difference_p_holm"]) == (
        "",
        "",
        "",
        "",
    )
    assert row["difference"] != ""
    assert {r["bootstrap_low"] for r in rows("results/digits/comparisons.csv")} == {""}
    text = (project / "results/digits/table.md").read_text()
    assert "one seed: no interval, no test (n = 1)" in text
    assert "±" not in text.partition("Protocol")[0]


def test_a_panel_of_one_arm_compares_nothing(project):
    panel = {"title": "Alone", "baseline": "random", "arms": ["random"], "controls": []}
    made, folders = make(fake_runs.study(panels={"alone": panel}))
    assert compare.main(arguments(made, folders)) == 0
    assert rows("results/digits/comparisons.csv") == []


def test_two_data_sets_make_a_table_each(project):
    made, folders = make(fake_runs.study(datasets=["digits", "other"]))
    assert compare.main(arguments(made, folders)) == 0
    tree = json.loads(Path("results/digits/metrics.json").read_text())
    assert list(tree) == ["model_i_digits", "model_i_other", "vit_digits", "vit_other"]
    assert (project / "results/digits/table.md").read_text().count("| random (baseline) |") == 2


def broken(made, folders, capsys):
    assert compare.main(arguments(made, folders)) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not os.path.exists("results/digits/table.md")
    return err


def test_a_missing_seed_is_an_error(project, capsys):
    made, folders = make()
    folders.remove("runs/digits/impulse/seed1")
    assert "digits/impulse/seed1 missing" in broken(made, folders, capsys)


def test_a_doubled_run_is_an_error(project, capsys):
    made, folders = make()
    assert "digits/random/seed0 given twice" in broken(made, [*folders, folders[0]], capsys)


def test_a_run_of_no_arm_is_an_error(project, capsys):
    _, folders = make()
    smaller = fake_runs.study()
    smaller["panels"].pop("vit")
    err = broken(smaller, folders, capsys)
    assert "digits/vit_random/seed0" in err
    assert "and 3 more not in the study" in err


def test_a_path_outside_runs_is_an_error(project, capsys):
    made, folders = make()
    os.rename(folders[0], "elsewhere")
    assert "elsewhere/metrics.json: belongs to no run" in broken(made, ["elsewhere", *folders[1:]], capsys)


def test_an_absent_file_is_an_error(project, capsys):
    made, folders = make()
    os.unlink(f"{folders[2]}/predictions.safetensors")
    assert f"{folders[2]}/predictions.safetensors" in broken(made, folders, capsys)


def test_metrics_of_other_predictions_are_an_error(project, capsys):
    made, folders = make()
    os.replace("runs/digits/random/seed0/metrics.json", "runs/digits/impulse/seed0/metrics.json")
    broken_at = "runs/digits/impulse/seed0/metrics.json: does not belong to"
    fake_runs.make_runs(Path.cwd(), {**made, "panels": {"x": {"arms": ["random"], "controls": []}}})
    assert broken_at in broken(made, folders, capsys)


def test_incomplete_metrics_are_an_error(project, capsys):
    made, folders = make()
    with open(f"{folders[0]}/metrics.json", "w") as f:
        json.dump({"test": {"top1": 1.0}}, f)
    assert "measures are missing" in broken(made, folders, capsys)


def test_runs_that_saw_other_test_images_are_not_compared(project):
    made, folders = make()
    path = f"{folders[-1]}/predictions.safetensors"
    tensors, header = load_tensors(path, "numpy")
    save_tensors(path, {**tensors, "index": tensors["index"] + 1}, header)
    with pytest.raises(UserError, match="other test images than runs/digits/random/seed0"):
        compare.compare(
            "digits",
            compare.build_study(made, "studies.digits"),
            [f"{f}/metrics.json" for f in folders],
            [f"{f}/predictions.safetensors" for f in folders],
            project / "results",
        )


def test_a_baseline_that_is_no_arm_is_an_error(project, capsys):
    made, folders = make()
    made["panels"]["vit"]["baseline"] = "random"
    assert "panels.vit.baseline: 'random' is no arm" in broken(made, folders, capsys)


def test_torch_is_not_imported(project):
    made, folders = make(fake_runs.study(seeds=(0, 1)))
    assert (
        fake_runs.imported("compare", arguments(made, folders), ("torch", "sklearn", "pandas", "mlflow"))
        == []
    )


@pytest.mark.parametrize("how", ["missing", "truncated", "foreign"])
@pytest.mark.parametrize("name", ["metrics.json", "predictions.safetensors"])
def test_a_bad_input_is_one_line_that_names_it_and_no_table_is_written(project, capsys, name, how):
    made, folders = make(fake_runs.study(seeds=(0,)))
    fake_runs.spoil(f"runs/digits/impulse/seed0/{name}", how)
    assert compare.main(arguments(made, folders)) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: runs/digits/impulse/seed0/{name}: ")
    assert err.count("\n") == 1
    assert not Path("results/digits").exists()
