"""The figure of learning curves: small multiples of few lines each."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnprior.analysis.history import CURVES, Course, course
from attnprior.analysis.panels import Key, members
from attnprior.config import Panel, Study
from attnprior.report import style
from attnprior.report.figures import Drawn, blank, figure_of, panels_of
from attnprior.report.words import ONE_SEED

LINES = 9  # in one axes, baseline included: more cannot be told apart
LABELS = {"val_top1": "validation top-1 (%)", "val_loss": "validation loss (nats)"}


def curves(study: Study, histories: Mapping[Key, dict[str, np.ndarray]]) -> Drawn:
    """Draw validation accuracy and loss over epochs by arm: mean over seeds, band from least to most.

    A row of axes shows a panel, or a part of one with its baseline again; all axes of a data set share their
    scale.
    """
    parts = [
        (dataset, title, arms)
        for dataset, _, panel, whole in panels_of(study)
        for title, arms in in_parts(panel, whole)
    ]
    found = {
        (dataset, arm, name): course([histories[dataset, arm, k] for k in study.seeds], name)
        for dataset, _, arms in parts
        for arm in arms
        for name in CURVES
    }
    if not any(found.values()):
        return blank("no run has a validation split")
    heights = [max(2.5, 0.19 * len(arms) + 0.75) for _, _, arms in parts]  # room for the legend
    figure = figure_of(10, sum(heights))
    grid = figure.subplots(len(parts), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    several = len(study.seeds) > 1
    for line, (dataset, title, arms) in zip(grid, parts, strict=True):
        for axes, name in zip(line, CURVES, strict=True):
            for place, arm in enumerate(arms):
                one = found[dataset, arm, name]
                if one is not None:
                    epochs = histories[dataset, arm, study.seeds[0]]["epoch"]
                    factor = 100 if name == "val_top1" else 1
                    _draw(axes, arm, style.line_style(place), place, epochs, one, factor, several)
            axes.set_xlabel("epoch")
            axes.set_ylabel(LABELS[name])
        line[0].set_title(title)
        if line[0].lines:
            line[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=8, handlelength=3.5)
    _share_scales(grid, [dataset for dataset, _, _ in parts])
    band = f"Lines are means over {len(study.seeds)} seeds, bands reach from the smallest to the largest seed"
    split = len(parts) > len(panels_of(study))
    return Drawn(
        figure,
        "Validation accuracy and loss after every epoch, by arm. "
        f"{f'{band}.' if several else f'{ONE_SEED.capitalize()}; lines are single runs without a band.'}"
        f"{' Panels of many arms are shown in parts, each with the baseline.' if split else ''}"
        " Validation images are for watching only: nothing is chosen by them.",
    )


def in_parts(panel: Panel, title: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (title, arms) of a panel in parts of nearly equal size, the baseline first in each."""
    others = [arm for arm in members(panel) if arm != panel.baseline]
    count = max(1, -(-len(others) // (LINES - 1)))
    for i, part in enumerate(np.array_split(np.array(others, dtype=object), count)):
        yield f"{title} ({i + 1} of {count})" if count > 1 else title, [panel.baseline, *part]


def _draw(
    axes: Any,
    arm: str,
    look: dict[str, Any],
    place: int,
    epochs: np.ndarray,
    one: Course,
    factor: float,
    band: bool,
) -> None:
    every = max(1, len(epochs) // 8)
    marks = (place % every, every)
    axes.plot(epochs, factor * one.mean, label=arm, linewidth=1.4, markersize=4, markevery=marks, **look)
    if band:
        low, high = factor * one.low, factor * one.high
        axes.fill_between(epochs, low, high, color=look["color"], alpha=0.1, lw=0)


def _share_scales(grid: np.ndarray, datasets: list[str]) -> None:
    for column in (0, 1):
        for dataset in dict.fromkeys(datasets):
            own = [a for a, d in zip(grid[:, column], datasets, strict=True) if d == dataset and a.lines]
            if own:
                top = max(a.get_ylim()[1] for a in own)
                low = 0.0 if column else min(a.get_ylim()[0] for a in own)
                for axes in own:
                    axes.set_ylim(low, top)
