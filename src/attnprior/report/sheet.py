"""A figure on which many small pictures are placed by hand, in inches from its upper left corner.

Pictures of one kind are drawn as one image each: hundreds of axes would take most of the time.
"""

from typing import Any

import numpy as np

from attnprior.report.style import DPI


class Canvas:
    """Pictures of one kind; what lies between them is transparent."""

    def __init__(self) -> None:
        self._placed: list[tuple[int, int, np.ndarray]] = []

    def put(self, x: float, y: float, side: float, pixels: np.ndarray) -> None:
        """Place `pixels` (rows, columns), square, or (rows, columns, 3) with colours from 0 to 1.

        Each pixel becomes a block of dots, so that no viewer smoothes it.
        """
        size = round(side * DPI)
        at = np.arange(size) * len(pixels) // size
        self._placed.append((round(x * DPI), round(y * DPI), pixels[at][:, at]))

    def dots(self) -> tuple[int, int, np.ndarray]:
        """Return left, top and the dots of the smallest rectangle around all pictures.

        Dots are (rows, columns) with nan between pictures, or (rows, columns, 4) with opacity.
        """
        left = min(x for x, _, _ in self._placed)
        top = min(y for _, y, _ in self._placed)
        right = max(x + p.shape[1] for x, _, p in self._placed)
        low = max(y + p.shape[0] for _, y, p in self._placed)
        coloured = self._placed[0][2].ndim == 3
        shape = (low - top, right - left)
        out = np.zeros((*shape, 4)) if coloured else np.full(shape, np.nan)
        for x, y, picture in self._placed:
            place = out[y - top : y - top + picture.shape[0], x - left : x - left + picture.shape[1]]
            if coloured:
                place[..., :3], place[..., 3] = picture, 1
            else:
                place[:] = picture
        return left, top, out


class Sheet:
    """An empty figure of a size in inches."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height))
        self._width, self._height = width, height

    def text(self, x: float, y: float, text: str, **look: Any) -> None:
        """Write `text`, vertically centred at y."""
        look = {"va": "center", "fontsize": 8, **look}
        self.figure.text(x / self._width, 1 - y / self._height, text, **look)

    def show(self, canvas: Canvas, **look: Any) -> Any:
        """Show the pictures of a canvas, and return matplotlib's image."""
        left, top, dots = canvas.dots()
        axes = self._axes(left / DPI, top / DPI, dots.shape[1] / DPI, dots.shape[0] / DPI)
        image = axes.imshow(dots, interpolation="none", aspect="auto", **look)
        axes.set_axis_off()
        return image

    def frame(self, x: float, y: float, side: float, colour: str) -> None:
        """Draw the outline of a square."""
        from matplotlib.patches import Rectangle

        w, h = self._width, self._height
        box = Rectangle((x / w, 1 - (y + side) / h), side / w, side / h, fill=False, edgecolor=colour)
        box.set_linewidth(1.5)
        self.figure.add_artist(box).set_zorder(5)

    def bar(self, x: float, y: float, height: float, image: Any, label: str) -> None:
        """Draw the colour scale of an image that has values above its end."""
        axes = self._axes(x, y, 0.1, height)
        self.figure.colorbar(image, cax=axes, extend="max")
        axes.grid(visible=False)
        axes.tick_params(labelsize=7)
        axes.set_ylabel(label, fontsize=7)

    def _axes(self, x: float, y: float, width: float, height: float) -> Any:
        w, h = self._width, self._height
        return self.figure.add_axes((x / w, 1 - (y + height) / h, width / w, height / h))
