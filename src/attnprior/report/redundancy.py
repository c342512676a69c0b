"""The figure of the redundancy condition: ranks of the tokens that enter each layer, against C / f^2."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnprior.analysis.panels import members
from attnprior.analysis.redundancy import DEFAULT_SIZE, LOOSE, TOLERANCES, Entering, holds
from attnprior.analysis.saved_maps import Maps
from attnprior.config import Study
from attnprior.report import style
from attnprior.report.curves import in_parts
from attnprior.report.figures import Drawn, blank, figure_of, panels_of
from attnprior.report.names import column
from attnprior.report.words import images_of

WIDTH = 0.4  # of a layer: the marks of its arms stand side by side
NOTHING = "the tokens of no arm of this study were looked at"


def redundancy(study: Study, maps: Maps, sizes: Sequence[int]) -> Drawn:
    """Draw the rank of the tokens that enter each layer by arm: mean over images, bar from least to most.

    A row of axes shows a panel, or a part of one with its baseline again: loose tolerance at the left, strict
    one at the right. `sizes` are the filter sizes f of the study, empty where it has none.
    """
    found = {(e.dataset, e.name): e for e in maps.entering if e.kind == "student"}
    parts = [
        (dataset, title, arms)
        for dataset, _, panel, whole in panels_of(study)
        for title, arms in in_parts(panel, whole)
        if any((dataset, arm) in found for arm in arms)
    ]
    if not parts:
        return blank(NOTHING)
    used = list(sizes) or [DEFAULT_SIZE]
    heights = [max(2.5, 0.19 * (len(arms) + len(used)) + 0.75) for _, _, arms in parts]  # room for the legend
    figure = figure_of(10, sum(heights))
    grid = figure.subplots(len(parts), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    tops = {d: _top([e for e in found.values() if e.dataset == d], used) for d, _, _ in parts}
    for line, (dataset, title, arms) in zip(grid, parts, strict=True):
        own = {place: found[dataset, a] for place, a in enumerate(arms) if (dataset, a) in found}
        for axes, which in zip(line, TOLERANCES, strict=True):
            _draw(axes, own, len(arms), which, used)
            axes.set_ylim(0, tops[dataset])
            axes.yaxis.get_major_locator().set_params(integer=True)
            axes.set_xlabel("layer")
            axes.set_ylabel(f"rank k, {which} tolerance")
        line[0].set_title(title)
        line[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=8, handlelength=3.5)
    split = len(parts) > len({(d, name) for d, name, _, _ in panels_of(study)})
    return Drawn(figure, _caption(study, maps, list(found.values()), used, bool(sizes), split))


def _top(networks: Sequence[Entering], sizes: Sequence[int]) -> float:
    """Return the end of the scale: the largest rank there can be, or the highest line."""
    return 1.06 * max(max(n.most, n.channels / min(sizes) ** 2) for n in networks)


def _draw(axes: Any, own: Mapping[int, Entering], count: int, which: str, sizes: Sequence[int]) -> None:
    """Draw the arms at their places among `count`, and a line for every C / f^2."""
    for place, network in own.items():
        ranks, look = network.ranks(which), style.line_style(place)
        x = 1 + np.arange(len(ranks)) + WIDTH * (place - (count - 1) / 2) / count
        axes.vlines(x, ranks.min(1), ranks.max(1), color=look["color"], linewidth=0.7, alpha=0.6)
        axes.plot(x, ranks.mean(1), label=network.name, linewidth=0.9, markersize=4, **look)
    for i, size in enumerate(sizes):
        for channels in sorted({n.channels for n in own.values()}):
            level = channels / size**2
            dashes = (0, (6, 1.5 + 2 * i))
            axes.axhline(level, color=style.SOFT, linewidth=1.3, linestyle=dashes, zorder=1)
            axes.plot([], [], color=style.SOFT, linewidth=1.3, linestyle=dashes, label=_name(channels, size))
    layers = max(len(n.values) for n in own.values())
    axes.set_xticks(range(1, layers + 1, max(1, layers // 12)))
    axes.set_xlim(0.6, layers + 0.4)
    axes.grid(axis="x", visible=False)


def _name(channels: int, size: int) -> str:
    return f"C / f\N{SUPERSCRIPT TWO} = {channels / size**2:.3g} (C = {channels}, f = {size})"


def _caption(
    study: Study, maps: Maps, networks: Sequence[Entering], sizes: Sequence[int], own: bool, split: bool
) -> str:
    strict = ", ".join(f"{t:.2g}" for t in sorted({n.tolerance("strict") for n in networks}))
    text = (
        "Does the redundancy condition C >= k f^2 (arXiv 2401.12511, section 3) hold on real activations? k"
        " is the rank of the N x C tokens that enter each layer of trained arms,"
        f" seed {study.seeds[0]} of each:"
        f" {images_of(maps.ranked, maps.split)}; patches without class token, before the norm of the layer."
        " Marks are means over images, bars reach from the smallest to the largest image. k counts singular"
        f" values above a share of the largest: {LOOSE:g} at the left (loose: weak directions do not count,"
        " which favours the condition), float32 eps times max(N, C) at the right (strict: what differs from"
        f" zero; {strict}). Dashed lines are C / f^2; the condition holds at and below them."
    )
    text += (
        " f is that of the impulse fits and ConvMixers of this study."
        if own
        else f" No arm of this study has filters: f = {DEFAULT_SIZE} is an example."
    )
    text += "".join(f" {_verdict(networks, size)}" for size in sizes)
    text += " Whether filters are independent, the other condition, is not looked at."
    if split:
        text += " Panels of many arms are shown in parts, each with the baseline."
    given = {(n.dataset, n.name) for n in networks}
    every = [(d, arm) for d in study.datasets for panel in study.panels.values() for arm in members(panel)]
    if left := [column(study.datasets, *key) for key in dict.fromkeys(every) if key not in given]:
        text += f" Arms not looked at, since there are too many: {', '.join(left)}."
    if any(e.kind == "teacher" for e in maps.entering):
        text += " Teachers stand in redundancy.csv alone."
    return text


def _verdict(networks: Sequence[Entering], size: int) -> str:
    """Return in how many layers of all arms the condition holds for every image, and how far it is off."""
    held = {which: [holds(n, which, size) for n in networks] for which in TOLERANCES}
    count = {which: int(sum(h.sum() for h in held[which])) for which in TOLERANCES}
    total = sum(len(n.values) for n in networks)
    if set(count.values()) == {total}:
        return f"f = {size}: the condition holds on these activations, in all {total} layers of these arms."
    where = {
        which: sorted({int(i) + 1 for h in held[which] for i in np.flatnonzero(h)}) for which in TOLERANCES
    }
    said = [f"in {count[which]} of {total} layers ({which}{_numbers(where[which])})" for which in TOLERANCES]
    off = [
        (n.ranks("loose")[~h] * size**2 / n.channels).ravel()
        for n, h in zip(networks, held["loose"], strict=True)
    ]
    missed = np.concatenate(off)
    text = f"f = {size}: the condition holds for every image {' and '.join(said)}, in the others it does not"
    if not any(count.values()):
        text = f"f = {size}: the condition does not hold on these activations: {' and '.join(said)}"
    if len(missed):
        text += (
            f"; where it fails, k f^2 / C is {missed.mean():.3g} on average and up to {missed.max():.3g} even"
            " at the loose tolerance"
        )
    return f"{text}."


def _numbers(layers: Sequence[int]) -> str:
    """Return which layers those are, by number."""
    if not layers:
        return ""
    whole = list(range(layers[0], layers[-1] + 1))
    run = f"{layers[0]} to {layers[-1]}" if len(whole) > 2 and list(layers) == whole else None
    return f"; layer {run or ', '.join(map(str, layers))} of an arm"
