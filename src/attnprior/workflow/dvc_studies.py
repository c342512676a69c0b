"""The generated end of `dvc.yaml`: the stages of the active studies, and what DVC plots of them."""

from attnprior import published
from attnprior.analysis.families import study_families
from attnprior.config import build_study
from attnprior.report.names import column
from attnprior.source import code_files
from attnprior.workflow import graph, mapped
from attnprior.workflow.studyfiles import PARAMS

CURVES = {"validation top-1 accuracy": "val_top1", "validation loss (nats)": "val_loss"}


def study_stages(params: dict) -> dict:
    """Return the DVC stages `study-…` of the active studies.

    They are written out, since a DVC template cannot list a varying number of dependencies.
    """
    stages = {}
    for study in params["active"]:
        out, rules = f"results/{study}", graph.study_rules(params, study)
        code = {f for rule in rules for f in code_files(rule)}
        code |= {*published.files()} if "against_paper" in rules else set()
        # Besides the arms, by name, the files whose maps are drawn: DVC has to see when they are others.
        fit, weights = graph.impulse_files(params, study)
        data, looked = mapped.map_files(params, study)
        arms = [arm.directory for arm in graph.study_arms(params, study)]
        teachers = [w for w in looked if w.startswith("teachers/")]
        ends = ("metrics.json", "report.html", *(["paper.csv"] if "against_paper" in rules else []))
        targets = " ".join(f"{out}/{name}" for name in ends)
        sources = list(dict.fromkeys([*arms, *fit, *weights, *data, *teachers]))
        stages[f"study-{study}"] = {
            "cmd": f"attnprior make {' '.join(rules)} -- {targets}",
            "deps": sources + sorted(code),
            "params": _params(params, [*graph.figure_keys(params, study), *mapped.map_keys(params, study)]),
            "outs": [f"{out}/{name}" for name in graph.study_files(params, study) if name != "metrics.json"],
            "metrics": [{f"{out}/metrics.json": {"cache": False}}],
        }
    return stages


def _params(params: dict, keys: list[str]) -> list:
    """Return the `params:` of a stage: keys of `params.yaml` as they are, others by file."""
    found = graph.tracked(params, keys)
    own = found.pop(PARAMS, [])
    return [*own, *({path: found[path]} for path in sorted(found))]


def study_plots(params: dict) -> list[dict]:
    """Return what `dvc plots` shows of the active studies: accuracy, learning curves, confusion matrices."""
    plots: list[dict] = []
    for study in params["active"]:
        out, datasets = f"results/{study}", params["studies"][study]["datasets"]
        bars = {"template": "bar_horizontal_sorted", "x": "top1_mean", "y": {f"{out}/table.csv": "arm"}}
        bars |= {"x_label": "test top-1 accuracy, mean over seeds", "y_label": "arm"}
        plots.append({f"{study}: test accuracy by arm": bars})
        for label, name in CURVES.items():
            for panel, arms in _panel_columns(params, study).items():
                curve = {"template": "linear", "x": "epoch", "y": {f"{out}/figures/{name}.csv": arms}}
                curve |= {"x_label": "epoch", "y_label": f"{label}, mean over seeds"}
                plots.append({f"{study}: {label} by epoch, panel {panel}": curve})
        found = study_families(build_study(params["studies"][study], f"studies.{study}"), params["students"])
        if found:
            lines = [column(datasets, d, f.name) for d in datasets for f in found]
            budget = {"template": "linear", "x": "labels", "y": {f"{out}/figures/labels.csv": lines}}
            budget |= {"x_label": "labels", "y_label": "test top-1 accuracy, mean over seeds"}
            plots.append({f"{study}: test accuracy by number of labels": budget})
        for arm in (column(datasets, a.dataset, a.student) for a in graph.study_arms(params, study)):
            matrix = {"template": "confusion", "x": "actual", "y": {f"{out}/figures/confusion.csv": arm}}
            matrix |= {"x_label": "true class", "y_label": f"class that {arm} gave"}
            plots.append({f"{study}: confusion of {arm}, one seed": matrix})
    return plots


def _panel_columns(params: dict, study: str) -> dict[str, list[str]]:
    """Return the columns of each panel on each data set; DVC has line patterns for few lines only."""
    values = params["studies"][study]
    return {
        column(values["datasets"], dataset, name): [
            column(values["datasets"], dataset, s) for s in [*panel["arms"], *panel["controls"]]
        ]
        for dataset in values["datasets"]
        for name, panel in graph.panels(params, study)
    }
