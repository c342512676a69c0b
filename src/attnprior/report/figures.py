"""The figures of a study, each with the text that belongs below it.

Captions are plain ASCII without quotation marks: Snakemake's report reads them out of captions.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprior.analysis.history import CURVES, course
from attnprior.analysis.panels import Key, Row, members
from attnprior.config import Panel, Study
from attnprior.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "accuracy": "Test accuracy by arm",
    "curves": "Learning curves",
    "impulse": "Impulse maps before and after training",
    "confusion": "Confusion matrices",
}
COLUMNS = 5  # confusion matrices side by side
LABEL = 6  # letters of a class name on an axis
MARKED = 0.05  # share of a row from which a confusion matrix shows the number


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
    figure = _figure(7, 1)
    figure.text(0.5, 0.5, f"Left out: {why}.", ha="center", va="center", color=style.SOFT)
    return Drawn(figure, f"Left out: {why}.", left_out=True)


def accuracy(study: Study, table: Sequence[Row], tidy: Sequence[Row]) -> Drawn:
    """Draw test accuracy by arm: each seed, the mean and its interval; a panel under the other."""
    panels, seeds = panels_of(study), len(study.seeds)
    rows = [len(members(p)) + bool(p.controls) for _, _, p, _ in panels]
    figure = _figure(6.2, 0.27 * sum(rows) + 0.75 * len(panels) + 0.3)
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
        axes.set_title(title)
    all_axes[-1].set_xlabel("test top-1 accuracy (%)")
    if seeds > 1:
        spread = (
            f"Open circles are the {seeds} seeds, filled marks their mean (number at the right), bars the"
            f" {100 * study.confidence:g} % Student t interval of the mean over seeds (no bar where all seeds"
            " are equal)."
        )
    else:
        spread = "One seed: no mean over seeds and no interval can be given."
    return Drawn(figure, f"{spread} Crosses are controls. {_protocol(study, tidy)}")


def curves(study: Study, histories: Mapping[Key, dict[str, np.ndarray]]) -> Drawn:
    """Draw validation accuracy and loss over epochs by arm: mean over seeds, band from least to most."""
    panels, seeds = panels_of(study), len(study.seeds)
    heights = [max(3.1, 0.19 * len(members(p)) + 0.8) for _, _, p, _ in panels]  # room for the legend
    figure = _figure(10, sum(heights))
    grid = figure.subplots(len(panels), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    drawn = 0
    for line, (dataset, _, panel, title) in zip(grid, panels, strict=True):
        for axes, column in zip(line, CURVES, strict=True):
            factor = 100 if column == "val_top1" else 1
            for place, arm in enumerate(_baseline_first(panel)):
                own = [histories[dataset, arm, k] for k in study.seeds]
                found = course(own, column)
                if found is None:
                    continue
                drawn += 1
                epochs, look = own[0]["epoch"], style.line_style(place)
                every = max(1, len(epochs) // 8)
                axes.plot(
                    epochs,
                    factor * found.mean,
                    label=arm,
                    linewidth=1.4,
                    markersize=4,
                    markevery=(place % every, every),
                    **look,
                )
                if seeds > 1:
                    axes.fill_between(
                        epochs, factor * found.low, factor * found.high, color=look["color"], alpha=0.1, lw=0
                    )
            axes.set_xlabel("epoch")
        line[0].set_ylabel("validation top-1 (%)")
        line[1].set_ylabel("validation loss (nats)")
        line[1].set_ylim(bottom=0)
        line[0].set_title(title)
        if drawn:
            line[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=8, handlelength=3.5)
    if not drawn:
        return blank("no run has a validation split")
    band = f"Lines are means over {seeds} seeds, bands reach from the smallest to the largest seed"
    return Drawn(
        figure,
        "Validation accuracy and loss after every epoch, by arm. "
        f"{f'{band}.' if seeds > 1 else 'One seed: lines are single runs, there is no band.'}"
        " Validation images are for watching only: nothing is chosen by them.",
    )


def confusion(
    study: Study, tidy: Sequence[Row], counts: Mapping[tuple[str, str], np.ndarray], names
) -> Drawn:
    """Draw a confusion matrix of each arm; `counts` (C, C) by (data set, arm), `names` by data set."""
    keys = list(dict.fromkeys((d, arm) for d, _, panel, _ in panels_of(study) for arm in members(panel)))
    lines, columns = -(-len(keys) // COLUMNS), min(COLUMNS, len(keys))
    figure, grid, bar = _matrices(lines, columns, max(len(c) for classes in names.values() for c in classes))
    image: Any = None
    for axes, key in zip(grid, keys, strict=False):
        found, classes = counts[key], names[key[0]]
        share = found / np.maximum(found.sum(1, keepdims=True), 1)
        image = axes.imshow(share, cmap=style.MAP, vmin=0, vmax=1, interpolation="nearest")
        if len(classes) <= 12:
            for i, j in zip(*np.nonzero(share >= MARKED), strict=True):
                colour = style.ON_LIGHT if share[i, j] > 0.5 else style.ON_DARK
                axes.text(
                    j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=4.5, color=colour
                )
            axes.set_xticks(range(len(classes)), [c[:LABEL] for c in classes], fontsize=6)
            axes.set_yticks(range(len(classes)), [c[:LABEL] for c in classes], fontsize=6)
            if max(map(len, classes)) > 2:
                axes.tick_params(axis="x", labelrotation=90)
        _bare(axes)
        axes.set_title(" ".join(key) if len(study.datasets) > 1 else key[1], fontsize=8)
    for axes in grid[len(keys) :]:
        axes.set_visible(False)
    figure.colorbar(image, cax=bar)
    bar.set_ylabel("share of the true class", fontsize=7)
    bar.tick_params(labelsize=6)
    seeds = len(study.seeds)
    return Drawn(
        figure,
        "Test images, rows by true class, columns by predicted class, summed over"
        f" {seeds} {'seeds' if seeds > 1 else 'seed'}. Colour is the share of the true class; shares from"
        f" {100 * MARKED:g} % are written in, in per cent. {_protocol(study, tidy)}",
    )


def impulse(
    maps: Mapping[str, np.ndarray], offsets: np.ndarray, mass: Mapping[str, np.ndarray], caption: str
) -> Drawn:
    """Draw maps (H, N, N) of one layer, a row for each of `maps`, a column for each head."""
    shown = min(len(offsets), 8)
    figure = _figure(1.75 * shown + 1.0, 1.75 * len(maps) + 0.5)
    grid = figure.subplots(len(maps), shown, squeeze=False)
    image: Any = None
    for line, (name, values) in zip(grid, maps.items(), strict=True):
        for head, axes in enumerate(line[:shown]):
            image = axes.imshow(values[head], cmap=style.MAP, vmin=0, vmax=1, interpolation="nearest")
            _bare(axes)
            axes.set_xticks([])
            axes.set_yticks([])
            if name in mass:
                axes.set_xlabel(f"on target {mass[name][head]:.2f}", fontsize=7)
        line[0].set_ylabel(name)
    for head, axes in enumerate(grid[0]):
        dy, dx = offsets[head]
        axes.set_title(f"head {head + 1}: ({dy:+d}, {dx:+d})", fontsize=8)
    bar = figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.6, aspect=25, pad=0.015)
    bar.set_label("attention", fontsize=8)
    more = f" The first {shown} of {len(offsets)} heads are shown." if shown < len(offsets) else ""
    return Drawn(figure, caption + more)


def _baseline_first(panel: Panel) -> list[str]:
    return [panel.baseline, *(a for a in members(panel) if a != panel.baseline)]


def _protocol(study: Study, tidy: Sequence[Row]) -> str:
    sizes = {r["dataset"]: r["value"] for r in tidy if r["split"] == "test" and r["metric"] == "n"}
    images = ", ".join(f"{n:g} test images of {d}" for d, n in sizes.items())
    teacher = (
        ""
        if study.teacher_seed is None
        else f" All seeds share the teacher and fit of seed {study.teacher_seed}."
    )
    return f"Protocol: {images}, measured once after the last epoch.{teacher}"


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # More than the usual room, in inches: else long names of arms are cut.
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08))


def _matrices(lines: int, columns: int, longest: int) -> tuple["Figure", np.ndarray, Any]:
    """Return a figure, its square axes (one row of them after the other) and the axes of its colour bar.

    Placed by hand, in inches: laying out many axes with their labels takes most of the time.
    """
    from matplotlib.figure import Figure

    side, label = 1.65, 0.12 + 0.06 * min(longest, LABEL)
    across, down = side + label + 0.12, side + label + 0.28
    width, height = columns * across + 0.85, lines * down + 0.25
    figure = Figure(figsize=(width, height))
    grid = [
        figure.add_axes(
            (
                (0.2 + c * across + label) / width,
                (height - (r + 1) * down + label) / height,
                side / width,
                side / height,
            )
        )
        for r in range(lines)
        for c in range(columns)
    ]
    bar = figure.add_axes(
        ((width - 0.5) / width, (height - down + label) / height, 0.1 / width, side / height)
    )
    bar.grid(visible=False)
    figure.text(0.5, 0.02 / height, "predicted class", ha="center", va="bottom", fontsize=8, color=style.SOFT)
    figure.text(0.02 / width, 0.5, "true class", va="center", rotation=90, fontsize=8, color=style.SOFT)
    return figure, np.array(grid), bar


def _bare(axes) -> None:
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
