"""`snakemake --report` of a finished project: categories, labels and the captions of the figures."""

import json
import re
import zipfile

import pytest

from attnprior.workflow import graph

pytestmark = pytest.mark.workflow
FIGURES = tuple(f"{name}.svg" for name in graph.FIGURES)
SHOWN = (*FIGURES, "table.csv", "comparisons.csv")


@pytest.mark.parametrize("suffix", ["html", "zip"])
def test_the_report_holds_tables_and_figures_with_their_captions(finished, tmp_path, suffix):
    path = tmp_path / f"report.{suffix}"
    finished.snakemake("--report", str(path))
    if suffix == "html":
        text = path.read_text()
    else:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            text = "".join(
                archive.read(n).decode() for n in names if n.endswith((".js", ".html")) and "report" in n
            )
        for name in SHOWN:
            assert any(n.endswith(name) for n in names), name
    for name in (*SHOWN, "results.csv", "report.html"):
        assert name in text, name
    for label in ("Figures", "Tables", "Learning curves", "Confusion matrices", "Table by arm"):
        assert label in text, label
    captions = finished.record("results/digits/figures/captions.json")["captions"]
    for caption in captions.values():
        beginning = re.match(r"[\w ,%():-]{20}", caption)
        assert beginning is not None
        assert beginning[0] in text
    assert "with the attention of a masked-autoencoder teacher" in " ".join(text.split())
    assert json.dumps(captions) not in text  # the text of each, not the file
