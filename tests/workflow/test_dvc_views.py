"""What DVC shows of a finished project and of a change: plots, metrics, parameters."""

import json

import pytest

from tests.workflow.project import Project

pytestmark = pytest.mark.workflow
ARMS = {"random", "impulse", "copy"}


def plots(project: Project, *command: str) -> dict[str, dict]:
    """Return {title: Vega specification} of `dvc plots COMMAND`."""
    found = json.loads(project.dvc("plots", *command, "--json").stdout)
    assert not found.get("errors"), found["errors"]
    return {title: shown[0]["content"] for title, shown in found["data"].items()}


def test_plots_show_accuracy_curves_and_confusion_of_every_arm(finished: Project):
    found = plots(finished, "show")
    bars = found["digits: test accuracy by arm"]
    assert bars["mark"] == {"type": "bar"}
    assert {r["arm"] for r in bars["data"]["values"]} == ARMS
    metrics = finished.record("results/digits/metrics.json")
    for row in bars["data"]["values"]:
        assert float(row["top1_mean"]) == metrics["model_i"][row["arm"]]["top1_mean"]
    for label in ("validation top-1 accuracy", "validation loss (nats)"):
        values = found[f"digits: {label} by epoch, panel model_i"]["data"]["values"]
        assert {r["field"] for r in values} == ARMS
        assert {r["epoch"] for r in values} == {"1", "2"}
    for arm in ARMS:
        matrix = found[f"digits: confusion of {arm}, one seed"]
        assert len(matrix["data"]["values"]) == 500
        assert matrix["spec"]["encoding"]["x"]["field"] == "actual"
        assert matrix["spec"]["encoding"]["y"]["field"] == arm
    assert len(found) == 1 + 2 + 3


def test_plots_are_a_page_that_a_browser_opens(finished: Project, tmp_path):
    finished.dvc("plots", "show", "-o", str(tmp_path / "plots"))
    assert "digits: test accuracy by arm" in (tmp_path / "plots/index.html").read_text()


@pytest.mark.slow
def test_diffs_show_a_changed_student_and_no_other(project: Project):
    project.put("students.random.labels", 150)
    project.attnprior("run")
    changed = json.loads(project.dvc("params", "diff", "--json").stdout)
    assert changed == {"params.yaml": {"students.random.labels": {"old": 200, "new": 150, "diff": -50}}}
    moved = json.loads(project.dvc("metrics", "diff", "--json").stdout)["results/digits/metrics.json"]
    assert "model_i.random.top1_mean" in moved
    assert not [k for k in moved if ".copy.top1" in k or ".impulse.top1" in k]
    assert "model_i.copy.difference" in moved  # to the baseline, which changed
    found = plots(project, "diff")
    bars = found["digits: test accuracy by arm"]["data"]["values"]
    assert {r["rev"] for r in bars} == {"HEAD", "workspace"}
    by = {(r["rev"], r["arm"]): r["top1_mean"] for r in bars}
    assert by["HEAD", "random"] != by["workspace", "random"]
    assert by["HEAD", "copy"] == by["workspace", "copy"]
