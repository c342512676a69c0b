"""The page of a study: one HTML file that needs no network; its script is only for comfort."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprior.analysis.families import study_families
from attnprior.analysis.panels import Row, by_panel, members
from attnprior.analysis.stats import RESAMPLES
from attnprior.config import Panel, Study
from attnprior.report.against import against_notes, against_table
from attnprior.report.budgets import budget_findings
from attnprior.report.cards import cards
from attnprior.report.findings import answer, findings, is_shown
from attnprior.report.script import SCRIPT, script_hash
from attnprior.report.style import inline_svg
from attnprior.report.tables import DASH, Table, make_table, notes, number, p_value
from attnprior.report.template import PAGE

SHOWN = (
    "Shown: a difference counts as shown where the t interval over seeds and the bootstrap interval over"
    " seeds and test images both exclude 0 and the p value after Holm's correction is below {:.3g}. What is"
    " not shown may still exist: few seeds show large differences only."
)
PAIRS = (
    "Pairs: differences to the baseline are one family of tests and all other pairs another. The bootstrap"
    f" resamples seeds and test images, the same for both arms ({RESAMPLES:,} resamples, percentiles); with"
    " few seeds it is too narrow and does not replace the t interval."
)


def render(
    study: Study,
    table: Sequence[Row],
    comparisons: Sequence[Row],
    tidy: Sequence[Row],
    runs: dict,
    histories: dict,
    figures: Sequence[dict[str, Any]],
    folder: str,
    students: Mapping[str, Mapping[str, Any]],
    beside: Sequence[Row] | None = None,
) -> str:
    """Return the page as HTML; `runs` maps paths to the content of the students' run.json.

    `table`, `comparisons` and `tidy` are the rows of table.csv, comparisons.csv and results.csv;
    `histories` holds the columns of history.csv by the same paths as `runs`; `figures` have name, title,
    caption, left_out and the text of their SVG; `folder` is where the page will lie; `students` has the
    settings of the study's students by name; `beside` the rows of paper.csv, if the study names published
    values. All but the part between the provenance
    comments is a function of rows, figures, students and study.
    """
    from jinja2 import Environment

    permuted = [name for name, settings in students.items() if settings["permute_labels"]]
    panels: list[dict[str, Any]] = []
    grouped = [by_panel(rows) for rows in (table, comparisons, tidy)]
    for dataset in study.datasets:
        for name, panel in study.panels.items():
            title = f"{panel.title}, {dataset}" if len(study.datasets) > 1 else panel.title
            own, pairs, values = (rows.get((dataset, name), []) for rows in grouped)
            panels.append(
                {
                    "title": title,
                    "answer": answer(own, pairs, panel.baseline, study.confidence),
                    "findings": findings(
                        own, pairs, panel.baseline, study.confidence, permuted, _classes(values)
                    ),
                    "table": make_table("Test results by arm", panel.baseline, own, study.confidence),
                    "pairs": pair_table(pairs, study.confidence),
                    "seeds": seed_table(values, panel, study),
                }
            )
    sizes = {r["dataset"]: r["value"] for r in tidy if r["split"] == "test" and r["metric"] == "n"}
    foot = [*notes(study, sizes), SHOWN.format(1 - study.confidence), PAIRS]
    page = Environment(autoescape=True, keep_trailing_newline=True).from_string(PAGE)
    budgets = budget_findings(study, study_families(study, students), comparisons)
    headline = budgets[0] if budgets else f"{panels[0]['title']}: {panels[0]['answer']}"
    drawn = [{**f, "svg": inline_svg(f["svg"], f["name"], f["title"])} for f in figures]
    if budgets:  # the figure that shows the answer comes first
        drawn.sort(key=lambda f: f["name"] != "labels")
    return page.render(
        title=study.title,
        headline=headline,
        figures=drawn,
        budgets=budgets[1:],
        panels=panels,
        paper=against_table(study, study.paper, beside) if study.paper and beside is not None else None,
        paper_notes=against_notes(study, study.paper) if study.paper else [],
        notes=foot,
        provenance=provenance(runs),
        cards=cards(runs, histories, tidy, folder),
        script=SCRIPT,
        script_hash=script_hash(),
    )


def _classes(tidy: Sequence[Row]) -> int:
    """Return the number of classes of a panel's test images."""
    return len({r["metric"] for r in tidy if str(r["metric"]).startswith("accuracy/")})


def pair_table(comparisons: Sequence[Row], confidence: float) -> Table:
    """Return every paired comparison of a panel; accuracies in points, NLL in nats."""
    interval = f"{100 * confidence:g} % interval"
    header = ["pair", "measure", "difference", f"t {interval}", f"bootstrap {interval}", "p (Holm)", "shown"]
    cells = []
    for row in comparisons:
        factor, digits = (100, 1) if row["metric"] == "top1" else (1, 3)
        ranges = [
            DASH
            if row[low] is None
            else f"{number(factor * row[low], digits, True)} to {number(factor * row[high], digits, True)}"
            for low, high in (("low", "high"), ("bootstrap_low", "bootstrap_high"))
        ]
        measure = "test top-1 (points)" if row["metric"] == "top1" else "test NLL"
        cells.append(
            [
                f"{row['arm']} against {row['reference']}",
                measure,
                number(factor * row["difference"], digits, True),
                *ranges,
                p_value(row["p_holm"]),
                "yes" if is_shown(row, confidence) else "no",
            ]
        )
    return Table("Paired differences", header, cells)


def seed_table(tidy: Sequence[Row], panel: Panel, study: Study) -> Table:
    """Return the test accuracy of each arm and seed in per cent."""
    found = {
        (r["arm"], r["seed"]): r["value"] for r in tidy if r["split"] == "test" and r["metric"] == "top1"
    }
    cells = [[arm, *(number(100 * found[arm, k], 1) for k in study.seeds)] for arm in members(panel)]
    return Table("Test top-1 (%) by seed", ["arm", *(f"seed {k}" for k in study.seeds)], cells)


def provenance(runs: dict[str, dict[str, Any]]) -> Table:
    """Return what the run.json files say of code, machine and time."""
    seconds = [r.get("seconds", {}).get("total", 0.0) for r in runs.values()]
    packages = sorted({p for r in runs.values() for p in r.get("versions", {})})
    lines = [
        ["commit", _distinct(r.get("commit") or "unknown" for r in runs.values())],
        ["device", _distinct(r.get("device") or "unknown" for r in runs.values())],
        *([p, _distinct(r.get("versions", {}).get(p, "none") for r in runs.values())] for p in packages),
        ["training runs", str(len(runs))],
        ["seconds, all runs together", f"{sum(seconds):.0f}"],
    ]
    return Table("Training of the students", ["of", "value"], lines)


def _distinct(values) -> str:
    return ", ".join(sorted(set(values)))
