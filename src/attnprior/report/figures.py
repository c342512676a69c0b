"""The figures of a study, each with the text that belongs below it.

Captions are plain ASCII without quotation marks: Snakemake's report reads them out of captions.json.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnprior.analysis.panels import Row, members
from attnprior.config import Panel, Study
from attnprior.report import style
from attnprior.report.words import ONE_SEED, teachers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawn:
    """A figure and its caption; `left_out` says why where there is nothing to see."""

    figure: "Figure"
    caption: str
    left_out: bool = False


def panels_of(study: Study) -> list[tuple[str, str, Panel, str]]:
    """Return (data set, name, panel, title) of each panel on each data set."""
    several = len(study.datasets) > 1
    return [
        (d, name, panel, f"{panel.title}, {d}" if several else panel.title)
        for d in study.datasets
        for name, panel in study.panels.items()
    ]


def blank(why: str) -> Drawn:
    """Return what stands in the place of a figure that has nothing to show."""
    figure = figure_of(7, 1)
    figure.text(0.5, 0.5, f"Left out: {why}.", ha="center", va="center", color=style.SOFT)
    return Drawn(figure, f"Left out: {why}.", left_out=True)


def accuracy(study: Study, table: Sequence[Row], tidy: Sequence[Row]) -> Drawn:
    """Draw test accuracy by arm: each seed, the mean and its interval; a panel under the other."""
    panels, seeds = panels_of(study), len(study.seeds)
    rows = [len(members(p)) + bool(p.controls) for _, _, p, _ in panels]
    figure = figure_of(6.2, 0.27 * sum(rows) + 0.75 * len(panels) + 0.3)
    all_axes = figure.subplots(
        len(panels), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": [r + 0.6 for r in rows]}
    )[:, 0]
    points = {
        (r["dataset"], r["panel"], r["arm"], r["seed"]): 100 * r["value"]
        for r in tidy
        if r["split"] == "test" and r["metric"] == "top1"
    }
    means = {(r["dataset"], r["panel"], r["arm"]): r for r in table}
    for axes, (dataset, name, panel, title) in zip(all_axes, panels, strict=True):
        places = {}
        for i, (arm, role) in enumerate(members(panel).items()):
            y = places[arm] = i + (role == "control")
            row = means[dataset, name, arm]
            drop = 0.28 if seeds > 1 else 0.0
            axes.scatter(
                [points[dataset, name, arm, k] for k in study.seeds],
                [y + drop] * seeds,
                s=13,
                facecolors="none",
                edgecolors=style.SOFT,
                linewidths=0.8,
                zorder=2,
            )
            colour = style.COLOURS[0] if role == "arm" else style.COLOURS[1]
            if row["top1_low"] is not None:
                span = [100 * row["top1_low"], 100 * row["top1_high"]]
                axes.plot(span, [y, y], color=colour, linewidth=1.6, solid_capstyle="butt", zorder=3)
            marker = "D" if role == "arm" else "X"
            axes.plot(100 * row["top1_mean"], y, marker=marker, color=colour, markersize=5.5, zorder=4)
            axes.text(
                1.01,
                y,
                f"{100 * row['top1_mean']:.1f}",
                transform=axes.get_yaxis_transform(),
                va="center",
                ha="left",
            )
        if panel.controls:
            axes.axhline(len(panel.arms), color=style.SOFT, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.text(
                0.995,
                len(panel.arms),
                "controls",
                transform=axes.get_yaxis_transform(),
                va="center",
                ha="right",
                fontsize=8,
                color=style.SOFT,
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5},
            )
        axes.set_yticks(list(places.values()), list(places))
        axes.set_ylim(max(places.values()) + 0.7, -0.7)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_title(textwrap.fill(title, max(30, 72 - max(map(len, places)))))  # none leaves the figure
    all_axes[-1].set_xlabel("test top-1 accuracy (%)" + (f"\n{ONE_SEED}" if seeds == 1 else ""))
    if seeds > 1:
        spread = (
            f"Open circles are the {seeds} seeds, filled marks their mean (number at the right), bars the"
            f" {100 * study.confidence:g} % Student t interval of the mean over seeds (no bar where all seeds"
            " are equal)."
        )
    else:
        spread = f"{ONE_SEED.capitalize()}; marks are single runs."
    return Drawn(figure, f"{spread} Crosses are controls. {protocol(study, tidy)}")


def protocol(study: Study, tidy: Sequence[Row]) -> str:
    """Return the sentences on how the test images were measured."""
    sizes = {r["dataset"]: r["value"] for r in tidy if r["split"] == "test" and r["metric"] == "n"}
    images = ", ".join(f"{n:g} test images of {d}" for d, n in sizes.items())
    return f"Protocol: {images}, measured once after the last epoch. {teachers(study)}"


def figure_of(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # More than the usual room, in inches: else long names of arms are cut.
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08))
