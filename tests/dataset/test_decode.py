import contextlib
import io

import numpy as np
import pytest
from PIL import Image

from attnprior.config import Resize
from attnprior.data.decode import BadImage, decode, resize_array


def saved(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def one(content: bytes, channels: int = 3) -> list[int]:
    """Return the value of the first pixel."""
    return decode(content, channels, None)[:, 0, 0].tolist()


def picture(mode: str, colour) -> Image.Image:
    return Image.new(mode, (4, 4), colour)


def test_colour_and_grey():
    assert one(saved(picture("RGB", (10, 20, 30)))) == [10, 20, 30]
    assert one(saved(picture("L", 77))) == [77] * 3
    assert one(saved(picture("L", 77)), 1) == [77]
    assert one(saved(picture("1", 1))) == [255] * 3
    # ITU-R 601: 0.299 R + 0.587 G + 0.114 B
    assert one(saved(picture("RGB", (10, 200, 30))), 1) == [round(0.299 * 10 + 0.587 * 200 + 0.114 * 30)]


def test_a_palette_becomes_its_colours():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 9, 8, 7])
    assert one(saved(image)) == [9, 8, 7]
    assert one(saved(image, "GIF")) == [9, 8, 7]


def test_what_is_transparent_shows_white():
    assert one(saved(picture("RGBA", (10, 20, 30, 0)))) == [255] * 3
    assert one(saved(picture("RGBA", (10, 20, 30, 255)))) == [10, 20, 30]
    half = one(saved(picture("RGBA", (0, 100, 200, 128))))
    np.testing.assert_allclose(half, [127, 177, 227], atol=1)
    assert one(saved(picture("LA", (50, 0)))) == [255] * 3
    assert one(saved(picture("LA", (50, 255))), 1) == [50]
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 9, 8, 7])
    assert one(saved(image, transparency=1)) == [255] * 3


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (65535, 255), (257 * 100, 100), (257 * 100 + 129, 101)]
)
def test_sixteen_bit_grey_is_scaled_and_not_cut_off(value, expected):
    image = Image.fromarray(np.full((4, 4), value, dtype=np.uint16))
    for kind in ("PNG", "TIFF"):
        assert one(saved(image, kind)) == [expected] * 3
        assert one(saved(image, kind), 1) == [expected]


def test_cmyk():
    assert one(saved(picture("CMYK", (0, 0, 0, 0)), "TIFF")) == [255] * 3
    assert one(saved(picture("CMYK", (0, 0, 0, 255)), "TIFF")) == [0] * 3
    cyan = one(saved(picture("CMYK", (255, 0, 0, 0)), "JPEG"))
    assert cyan[0] < 10 and min(cyan[1:]) > 240


def test_the_first_frame_counts():
    frames = [picture("RGB", (200, 0, 0)), picture("RGB", (0, 0, 200))]
    assert one(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) == [200, 0, 0]


def test_a_stored_orientation_is_not_applied():
    image = Image.new("RGB", (4, 2))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(saved(image, "JPEG", exif=exif), 3, None).shape == (3, 2, 4)


def test_pixels_without_an_eight_bit_meaning_are_refused():
    with pytest.raises(BadImage, match="floating-point"):
        one(saved(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF"))
    with pytest.raises(BadImage, match="beyond 16 bits"):
        one(saved(Image.fromarray(np.full((4, 4), -5, dtype=np.int32)), "TIFF"))


def test_too_many_pixels_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(BadImage, match="more pixels"):
        one(saved(picture("RGB", 0)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_no_cut_of_a_file_gives_anything_but_an_image_or_a_bad_image(kind):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    content = saved(image, kind)
    for length in range(0, len(content), max(1, len(content) // 60)):
        with contextlib.suppress(BadImage):
            assert decode(content[:length], 3, None).shape == (3, 9, 9)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 20), (31, 17), (5, 200)])
def test_the_middle_is_cut_out_or_the_whole_is_squeezed(height, width):
    across = np.linspace(0, 255, width)[None, :, None] + np.zeros((height, 1, 3))
    content = saved(Image.fromarray(across.astype(np.uint8)))
    whole = decode(content, 3, Resize(8, "none"))
    middle = decode(content, 3, Resize(8, "center"))
    assert whole.shape == middle.shape == (3, 8, 8)
    at = (np.arange(8) + 0.5) / 8 * 255
    np.testing.assert_allclose(whole[0, 4], at, atol=20)
    share = min(height, width) / width
    np.testing.assert_allclose(middle[0, 4], 127.5 + (at - 127.5) * share, atol=20)


def test_the_right_size_is_left_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    np.testing.assert_array_equal(resize_array(pixels, Resize(8, "center")), pixels)
    np.testing.assert_array_equal(resize_array(pixels[:1], Resize(8, "none")), pixels[:1])
