"""One look for all figures, and files that are the same bytes whenever they are drawn."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line
from attnprior.files import atomic, write_text

INK, SOFT, LINE, PAPER = "#1d2127", "#5a6370", "#d5dae1", "#ffffff"
# Okabe and Ito's colours but black (the baseline is INK) and yellow (too light for lines).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("s", "^", "D", "v", "P", "X", "p")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
ON_LIGHT, ON_DARK = "#000000", "#fefefe"  # text on cells: keeps its colour on a dark page
DPI = 150  # of PNG files
MAP = "cividis"  # made for readers with and without colour blindness; light means more

RC: Any = {
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "axes.grid.axis": "both",
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.hashsalt": "attnprior",  # else names of clip paths are random
    "svg.fonttype": "path",
}


def line_style(place: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the arm at `place` of a panel; the first is its baseline."""
    if place == 0:
        return {"color": INK, "marker": "o", "linestyle": "-"}
    n = place - 1
    return {
        "color": COLOURS[n % len(COLOURS)],
        "marker": MARKERS[n % len(MARKERS)],
        "linestyle": DASHES[n % len(DASHES)],
    }


@contextlib.contextmanager
def look():
    """Draw in this style within the block, whatever the user's own settings of matplotlib are.

    Files are drawn by Agg and the SVG writer; no display and no other back end is ever asked for.

    Raises:
        UserError: matplotlib cannot be imported.
    """
    os.environ["MPLBACKEND"] = "agg"  # an unknown name there makes the import fail
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as e:
        raise UserError(
            f"figures need matplotlib, which cannot be imported ({one_line(e)}); install it"
            " (pip install matplotlib) and run again"
        ) from e

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def save(figure, stem: Path) -> None:
    """Write a figure as stem.svg and stem.png, atomically."""
    with look():
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        write_text(stem.with_suffix(".svg"), text.getvalue())
        figure.set_layout_engine("none")  # it is laid out now
        with atomic(stem.with_suffix(".png")) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def inline_svg(text: str, name: str, title: str) -> str:
    """Return a saved SVG as an element of an HTML page, in the page's own colours of text and lines.

    Its ids get the prefix `name`, so that several figures can be on one page. Ids that nothing refers to and
    what is finer than a hundredth of a point are left out: of large studies they are a quarter of the page.
    """
    from html import escape

    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns(:xlink)?="[^"]*"', "", body).replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", body)
    body = re.sub(r"([1-9]\d*\.\d\d)\d+", r"\1", body)  # nothing below 1, such as factors of glyphs
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, value in ((INK, "currentColor"), (SOFT, "var(--soft)"), (LINE, "var(--line)")):
        body = body.replace(colour, value)
    body = body.replace(f"fill: {PAPER}", "fill: var(--back)")
    view = re.search(r'viewBox="[^"]*"', body)
    assert view is not None
    width = float(view[0].split()[2])  # points
    style = f'class="figure" style="max-width: {width * 1.5 / 16:.3g}rem"'  # text of 9 pt has 13.5 px
    opening = f'<svg {style} role="img" aria-label="{escape(title)}" {view[0]}>'
    return opening + re.sub(r"\n\s*", "\n", body[body.index(">") + 1 :]).strip()
