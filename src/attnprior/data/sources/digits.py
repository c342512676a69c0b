"""scikit-learn's handwritten digits, which are shipped inside that package."""

from attnprior.data.sources.common import Found, Request


def sklearn_digits(request: Request) -> Found:
    """Return 1,797 handwritten digits: one channel, 8x8.

    The grey values 0..16 become round(v * 255 / 16), halves up, in integers: 0 and 16 map to 0
    and 255, and the 17 levels stay distinct.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = found.images.astype(np.int64)  # N 8 8, whole numbers
    images = ((levels * 255 + 8) // 16).astype(np.uint8)[:, None]
    labels = found.target.astype(np.int64)
    return Found(images, labels, np.zeros(len(labels), dtype=np.int64), [str(c) for c in found.target_names])
