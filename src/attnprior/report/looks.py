"""Figures of what networks do with single images: where they look, what masked autoencoders rebuild."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnprior.analysis.panels import members
from attnprior.analysis.saved_maps import MOST_TEACHERS, Looked, Maps
from attnprior.config import Study
from attnprior.report import style
from attnprior.report.figures import Drawn, blank
from attnprior.report.names import column
from attnprior.report.sheet import Canvas, Sheet
from attnprior.report.words import images_of

SHOWN = 4  # layers and heads side by side
SIDE, STEP, APART, LINE = 0.4, 0.46, 0.14, 0.22  # inches: a map, map to map, between groups, a line of text
IMAGE = 2 * SIDE
BARS = 3.5 * LINE + IMAGE  # where the colour scales begin
STRIPES = (0.62, 0.5)  # greys of a hidden patch
NO_ATTENTION = "no network of this study has attention that can be shown"
NO_TEACHER = "no student of this study has a masked autoencoder as its teacher"


def spread(count: int) -> list[int]:
    """Return at most SHOWN of `count` places, first and last among them, evenly spread."""
    return [int(i) for i in np.unique(np.linspace(0, count - 1, min(SHOWN, count)).round())]


def attention(study: Study, maps: Maps) -> Drawn:
    """Draw where each network looks, a row each: by image and layer, then by head of one layer."""
    if not maps.networks:
        return blank(NO_ATTENTION)
    blocks = list(_blocks(study, maps))
    layers = max(len(spread(len(n.looked))) for n in maps.networks)
    heads = max(len(spread(len(n.heads))) for n in maps.networks)
    left = 0.3 + 0.075 * max(len(n.name) for n in maps.networks)
    group = layers * STEP + APART
    right = left + max(map(len, maps.images.values())) * group + APART
    heights = [
        2 * LINE + IMAGE + sum(2 * LINE + len(rows) * STEP for _, rows in parts) + 0.1 for _, parts in blocks
    ]
    sheet = Sheet(right + heads * STEP + 0.95, 0.1 + max(sum(heights), BARS + 3.5))
    looked, centre, pictures, y = Canvas(), Canvas(), Canvas(), 0.1
    for (dataset, parts), height in zip(blocks, heights, strict=True):
        images, line = maps.images[dataset], y
        sheet.text(left, line + LINE / 2, f"{dataset}: where each layer looks", fontsize=9)
        sheet.text(right, line + LINE / 2, f"centre query, layer {maps.heads_layer + 1}", fontsize=9)
        line += LINE + 0.05
        starts = [left + i * group for i in range(len(images))]
        for x, image in zip(starts, images, strict=True):
            pictures.put(x + (group - APART - IMAGE) / 2, line, IMAGE, _colours(image))
        x, grid = right + (heads * STEP - IMAGE) / 2, parts[0][1][0].looked.shape[-1]
        pictures.put(x, line, IMAGE, _colours(images[0]))
        at = grid // 2 / grid * IMAGE
        sheet.frame(x + at, line + at, IMAGE / grid, style.COLOURS[1])
        line += IMAGE + 0.1
        for title, rows in parts:
            sheet.text(0.08, line + LINE / 2, title, color=style.SOFT)
            _numbers(sheet, starts, "layer", [len(n.looked) for n in rows], line + 1.5 * LINE)
            _numbers(sheet, [right], "head", [len(n.heads) for n in rows], line + 1.5 * LINE)
            line += 2 * LINE
            for network in rows:
                sheet.text(left - 0.1, line + SIDE / 2, network.name, ha="right")
                for i, x in enumerate(starts):
                    for k, layer in enumerate(spread(len(network.looked))):
                        looked.put(x + k * STEP, line, SIDE, network.looked[layer, i] * network.tokens)
                for k, head in enumerate(spread(len(network.heads))):
                    centre.put(right + k * STEP, line, SIDE, network.heads[head, 0] * network.tokens)
                line += STEP
        y += height
    sheet.show(pictures)
    x, y = right + heads * STEP + 0.08, BARS
    for canvas, name in ((looked, "looked"), (centre, "heads")):
        image = sheet.show(canvas, cmap=style.MAP, vmin=0, vmax=_limit(maps.networks, name))
        sheet.bar(x, y, 1.4, image, f"times uniform, by {'layer' if name == 'looked' else 'head'}")
        y += 1.8
    return Drawn(sheet.figure, _attention_caption(study, maps))


def reconstruction(study: Study, maps: Maps) -> Drawn:
    """Draw original, masked input and reconstruction of each masked autoencoder, an image a column."""
    if not maps.rebuilt:
        return blank(NO_TEACHER)
    names = ("original", "input", "rebuilt")
    side, step, left = 1.0, 1.08, 0.95
    height = LINE + 0.05 + len(names) * step + 0.15
    sheet = Sheet(
        max(left + max(map(len, maps.images.values())) * step, 4.5), 0.05 + len(maps.rebuilt) * height
    )
    canvas = Canvas()
    for place, found in enumerate(maps.rebuilt):
        y = 0.05 + place * height
        sheet.text(left, y + LINE / 2, f"{found.name} on {found.dataset}, seed {found.seed}", fontsize=9)
        y += LINE + 0.05
        original = maps.images[found.dataset]
        rebuilt = np.where(found.hidden, np.clip(found.predicted, 0, 1), original)
        for name, images in zip(names, (original, original, rebuilt), strict=True):
            sheet.text(left - 0.1, y + side / 2, name, ha="right")
            for i, image in enumerate(images):
                hidden = found.hidden[i, 0] if name == "input" else None
                canvas.put(left + i * step, y, side, _colours(image, hidden))
            y += step
    sheet.show(canvas)
    return Drawn(sheet.figure, _reconstruction_caption(maps))


def _blocks(study: Study, maps: Maps) -> Iterator[tuple[str, list[tuple[str, list[Looked]]]]]:
    """Yield (data set, [(title, networks)]): panels with their arms, each arm once, then teachers."""
    for dataset in maps.images:
        own = [n for n in maps.networks if n.dataset == dataset]
        students = {n.name: n for n in own if n.kind == "student"}
        parts = [
            (panel.title, [students.pop(arm) for arm in members(panel) if arm in students])
            for panel in study.panels.values()
        ]
        parts.append(("Teachers", [n for n in own if n.kind == "teacher"]))
        if own:
            yield dataset, [(title, rows) for title, rows in parts if rows]


def _numbers(sheet: Sheet, starts: Sequence[float], word: str, counts: Sequence[int], y: float) -> None:
    """Write which layers or heads stand in the columns; networks of several depths share first and last."""
    for x in starts:
        for k, place in enumerate(spread(counts[0])):
            same = len(set(counts)) == 1
            text = f"{word} {place + 1}" if k == 0 else f"{place + 1}" if same else ""
            if not same and k == len(spread(counts[0])) - 1:
                text = "last"
            look = {"ha": "center", "fontsize": 7, "color": style.SOFT}
            sheet.text(x + k * STEP + SIDE / 2, y, text, **look)


def _limit(networks: Sequence[Looked], name: str) -> float:
    """Return the end of a colour scale: at most 1 % of the values lie above."""
    values = np.concatenate([(getattr(n, name) * n.tokens).ravel() for n in networks])
    return float(max(2, np.ceil(np.quantile(values, 0.99))))


def _colours(image: np.ndarray, hidden: np.ndarray | None = None) -> np.ndarray:
    """Return an image (C, H, W) from 0 to 1 as (H, W, 3): grey where it has not three channels or more.

    Where `hidden` (H, W) is true there are stripes instead, in dots finer than pixels.
    """
    pixels = np.moveaxis(image[[0, 0, 0] if len(image) < 3 else [0, 1, 2]], 0, -1)
    if hidden is None:
        return pixels
    times = -(-96 // len(pixels))  # dots a pixel
    pixels, hidden = (a.repeat(times, 0).repeat(times, 1) for a in (pixels, hidden))
    row, column = np.indices(hidden.shape)
    stripe = np.where((row + column) // 6 % 2 == 0, *STRIPES)
    return np.where(hidden[..., None], stripe[..., None], pixels)


def _reconstruction_caption(maps: Maps) -> str:
    shares = [f"{100 * r.hidden.mean():.0f} %" for r in maps.rebuilt]
    text = (
        f"Masked autoencoders that teach students of this study, decoder included: {_images(maps)}."
        f" Input: what the encoder saw, with the hidden patches striped ({', '.join(dict.fromkeys(shares))})."
        " Rebuilt: the decoder output for hidden patches; visible patches are those of the input, pasted in,"
        " since the training loss does not judge them."
    )
    if len(maps.rebuilt) >= MOST_TEACHERS:
        text += f" At most {MOST_TEACHERS} are shown."
    if normed := dict.fromkeys(r.name for r in maps.rebuilt if r.norm_pix_loss):
        text += (
            f" {', '.join(normed)} predicts patches without their mean and variance: those of the original"
            " are put back, so the brightness and contrast of a patch are not its own."
        )
    return text


def _images(maps: Maps) -> str:
    """Return what the images are."""
    return images_of({dataset: len(images) for dataset, images in maps.images.items()}, maps.split)


def _attention_caption(study: Study, maps: Maps) -> str:
    text = (
        f"Attention of trained students and their teachers, seed {study.seeds[0]} of each arm:"
        f" {_images(maps)}, of different classes where there are enough. By layer: weight on each patch, mean"
        " over heads and queries. By head: what the query of the framed patch of the first image looks at, in"
        f" layer {maps.heads_layer + 1}. Colours count in uniform attention: 1 is what a patch gets if"
        " all get the same; 1 per cent of the values lie above the end of a scale."
    )
    if any(max(len(n.looked), len(n.heads)) > SHOWN for n in maps.networks):
        text += f" At most {SHOWN} layers and heads are shown, evenly spread."
    if copied := [f"{n.name} ({n.copies})" for n in maps.networks if n.copies]:
        text += f" Arms that copy attention are shown with the maps that they use: {', '.join(copied)}."
    if with_token := [n.name for n in maps.networks if n.cls_token]:
        text += (
            " Class tokens are left out as queries and as keys, so what falls on them is missing from the"
            f" maps of {', '.join(dict.fromkeys(with_token))}."
        )
    given = {(n.dataset, n.name) for n in maps.networks} | set(maps.without)
    every = [(d, arm) for d in study.datasets for panel in study.panels.values() for arm in members(panel)]
    left = [column(study.datasets, *key) for key in dict.fromkeys(every) if key not in given]
    if left:
        text += f" Left out for want of room: {', '.join(left)}."
    if maps.without:
        names = ", ".join(column(study.datasets, *key) for key in maps.without)
        text += f" Without attention, so they cannot be shown: {names}."
    return text
