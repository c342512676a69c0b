"""The figure of a study's label budgets: test accuracy over the number of labels."""

from collections.abc import Sequence

from attnprior.analysis.families import Family
from attnprior.analysis.panels import Row
from attnprior.config import Study
from attnprior.report import figures, style
from attnprior.report.names import column
from attnprior.report.words import ONE_SEED

NO_FAMILIES = "no arms of this study differ in their number of labels alone"
BAND = ("top1_low", "top1_high")
WIDEN = 0.035  # between the seeds of two arms with the same number of labels, as a share of it


def budgets(
    study: Study, found: Sequence[Family], table: Sequence[Row], tidy: Sequence[Row]
) -> figures.Drawn:
    """Draw a line per family: mean over seeds with its interval, and each seed; an axis per data set."""
    if not found:
        return figures.blank(NO_FAMILIES)
    means = {(r["dataset"], r["arm"]): r for r in reversed(table)}
    points = {
        (r["dataset"], r["arm"], r["seed"]): 100 * r["value"]
        for r in tidy
        if r["split"] == "test" and r["metric"] == "top1"
    }
    seeds, several = len(study.seeds), len(study.datasets) > 1
    figure = figures.figure_of(7, 3.9 * len(study.datasets))
    for axes, dataset in zip(
        figure.subplots(len(study.datasets), 1, squeeze=False)[:, 0], study.datasets, strict=True
    ):
        for place, family in enumerate(found):
            look = style.line_style(place)
            labels, rows = list(family.arms), [means[dataset, a] for a in family.arms.values()]
            beside = 1 + WIDEN * (place - (len(found) - 1) / 2)
            for n, arm in family.arms.items() if seeds > 1 else ():
                own = [points[dataset, arm, k] for k in study.seeds]
                axes.scatter([n * beside] * seeds, own, s=7, color=look["color"], alpha=0.45, lw=0, zorder=2)
            top1 = [100 * r["top1_mean"] for r in rows]
            axes.plot(labels, top1, label=family.name, linewidth=1.5, markersize=4.5, zorder=3, **look)
            # Where all seeds are equal there is no interval, so the band has a gap.
            low, high = ([float("nan") if r[k] is None else 100 * r[k] for r in rows] for k in BAND)
            axes.fill_between(labels, low, high, color=look["color"], alpha=0.13, lw=0, zorder=1)
        ticks = sorted({n for family in found for n in family.arms})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.minorticks_off()
        axes.set_ylabel("test top-1 (%)")
        axes.set_xlabel("labels" if seeds > 1 else f"labels ({ONE_SEED})")
        if several:
            axes.set_title(dataset)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=8, handlelength=3.5)
    return figures.Drawn(figure, caption(study, found, tidy))


def caption(study: Study, found: Sequence[Family], tidy: Sequence[Row]) -> str:
    """Return what the figure shows, and how it was measured."""
    spread = (
        f"Lines are means over {len(study.seeds)} seeds, bands their {100 * study.confidence:g} % Student t"
        " intervals (a gap where all seeds are equal), dots the seeds, those of several arms side by side."
        if len(study.seeds) > 1
        else f"{ONE_SEED.capitalize()}; lines are single runs."
    )
    names = ", ".join(f.name for f in found)
    return (
        f"Test accuracy over the number of labels, on a logarithmic axis. A line joins arms that differ in"
        f" their number of labels alone: {names}. {spread} {figures.protocol(study, tidy)}"
    )


def table(study: Study, found: Sequence[Family], rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return rows and columns of mean test accuracy: a number of labels a row, a family a column."""
    means = {(r["dataset"], r["arm"]): r["top1_mean"] for r in rows}
    made: dict[int, Row] = {}
    columns = ["labels"]
    for dataset in study.datasets:
        for family in found:
            columns.append(column(study.datasets, dataset, family.name))
            for n, arm in family.arms.items():
                made.setdefault(n, {"labels": n})[columns[-1]] = means[dataset, arm]
    return [made[n] for n in sorted(made)], columns
