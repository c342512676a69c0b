"""The figures of a study that are maps: confusion matrices and attention."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprior.analysis.panels import Row, members
from attnprior.config import Study
from attnprior.report import style
from attnprior.report.figures import Drawn, figure_of, panels_of, protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 5  # confusion matrices side by side
LABEL = 6  # letters of a class name on an axis
MARKED = 0.05  # share of a row from which a confusion matrix shows the number
CLASSES, MATRICES = 12, 60  # most that get numbers: each is a text of its own


def confusion(
    study: Study, tidy: Sequence[Row], counts: Mapping[tuple[str, str], np.ndarray], names
) -> Drawn:
    """Draw a confusion matrix of each arm; `counts` (C, C) by (data set, arm), `names` by data set."""
    keys = list(dict.fromkeys((d, arm) for d, _, panel, _ in panels_of(study) for arm in members(panel)))
    lines, columns = -(-len(keys) // COLUMNS), min(COLUMNS, len(keys))
    figure, grid, bar = _matrices(lines, columns, max(len(c) for classes in names.values() for c in classes))
    image: Any = None
    written = len(keys) <= MATRICES and max(map(len, names.values())) <= CLASSES
    for axes, key in zip(grid, keys, strict=False):
        found, classes = counts[key], names[key[0]]
        share = found / np.maximum(found.sum(1, keepdims=True), 1)
        image = axes.imshow(share, cmap=style.MAP, vmin=0, vmax=1, interpolation="nearest")
        if len(classes) <= CLASSES:
            for i, j in np.argwhere(share >= MARKED) if written else ():
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
    numbers = f"; shares from {100 * MARKED:g} % are written in, in per cent"
    return Drawn(
        figure,
        "Test images, rows by true class, columns by predicted class, summed over"
        f" {seeds} {'seeds' if seeds > 1 else 'seed'}. Colour is the share of the true class"
        f"{numbers if written else ''}. {protocol(study, tidy)}",
    )


def impulse(
    maps: Mapping[str, np.ndarray], offsets: np.ndarray, mass: Mapping[str, np.ndarray], caption: str
) -> Drawn:
    """Draw maps (H, N, N) of one layer, a row for each of `maps`, a column for each head."""
    shown = min(len(offsets), 8)
    figure = figure_of(1.75 * shown + 1.0, 1.75 * len(maps) + 0.5)
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
