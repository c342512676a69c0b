"""Image files to arrays: every kind to the wanted channels and one size.

Conventions: what is transparent shows white; 16-bit grey becomes 8-bit by v / 257, rounded; colour becomes
grey by the weights of ITU-R 601; of several frames the first counts; a stored orientation is not applied.
"""

import io
import warnings
from typing import Any

from attnprior.config import Resize


class BadImage(Exception):
    """A file that is no readable image; the text says why."""


def decode(content: bytes, channels: int, resize: Resize | None) -> Any:
    """Return an image file as an array (C, H, W) uint8.

    Raises:
        BadImage: empty, truncated, no image, or of a kind that has no 8-bit meaning.
    """
    from PIL import Image

    if not content:
        raise BadImage("empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on metadata and on large pictures
            with Image.open(io.BytesIO(content)) as image:
                image.load()
                return to_array(shrink(converted(image, channels), resize))
    except Image.UnidentifiedImageError as e:
        raise BadImage("no image") from e
    except Image.DecompressionBombError as e:
        raise BadImage("more pixels than Pillow opens") from e
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, MemoryError) as e:
        # What Pillow's readers raise for broken content.
        raise BadImage("truncated" if "truncated" in str(e).lower() else f"broken ({e})") from e


def converted(image, channels: int):
    """Return a Pillow image in mode L or RGB; see the conventions above."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I"):  # I;16 and relatives, and I, which 16-bit PNGs become
        values = np.asarray(image).astype(np.int64)
        if np.min(values) < 0 or np.max(values) > 65535:
            raise BadImage("whole numbers beyond 16 bits")
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise BadImage("floating-point pixels")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
    wanted = "L" if channels == 1 else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def shrink(image, resize: Resize | None):
    """Return a Pillow image as one square size, by antialiased bicubic interpolation."""
    from PIL import Image

    if resize is None:
        return image
    size, (width, height) = resize.size, image.size
    if resize.crop == "none":
        return (
            image if (width, height) == (size, size) else image.resize((size, size), Image.Resampling.BICUBIC)
        )
    short = min(width, height)
    scaled = (max(size * width // short, size), max(size * height // short, size))
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BICUBIC)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return image.crop((left, top, left + size, top + size))


def to_array(image) -> Any:
    """Return a Pillow image of mode L or RGB as an array (C, H, W) uint8."""
    import numpy as np

    found = np.asarray(image)
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def resize_array(pixels, resize: Resize):
    """Return one image (C, H, W) uint8 in the wanted size."""
    import numpy as np
    from PIL import Image

    # Greyscale arrays lose their channel axis for Pillow.
    layout = pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return to_array(shrink(Image.fromarray(layout), resize))
