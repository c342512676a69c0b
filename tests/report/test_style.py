from attnprior.report.style import inline_svg

SVG = """<?xml version="1.0"?>
<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 144 72" xmlns="http://www.w3.org/2000/svg">
 <defs><path id="glyph" d="M 12.3456 0.0625"/><clipPath id="clip"><path d="M 0 0"/></clipPath></defs>
 <g id="line2d_7" clip-path="url(#clip)">
  <use xlink:href="#glyph" transform="translate(100.98765 7.5) scale(0.0625 -0.0625)"/>
 </g>
</svg>
"""


def test_only_ids_that_something_refers_to_are_on_the_page():
    page = inline_svg(SVG, "curves", "Curves")
    assert 'id="curves-glyph"' in page
    assert 'href="#curves-glyph"' in page
    assert 'id="curves-clip"' in page
    assert "url(#curves-clip)" in page
    assert "line2d_7" not in page


def test_coordinates_keep_hundredths_of_a_point_and_scales_everything():
    page = inline_svg(SVG, "curves", "Curves")
    assert "translate(100.98 7.5) scale(0.0625 -0.0625)" in page
    assert "M 12.34 0.0625" in page
