import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnprior.stages import compare, report
from tests.stages import fake_runs


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(made):
    folders = [os.path.relpath(f) for f in fake_runs.make_runs(Path.cwd(), made)]
    params = json.dumps({"studies.digits": made})
    common = ["--params", params, "--threads", "1", "--study", "digits"]
    argv = [*common, "--out-dir", "results/digits", "--run-json", "results/digits/run.json"]
    argv += [
        "--events",
        "logs/compare/digits.events.jsonl",
        "--metrics",
        *(f"{f}/metrics.json" for f in folders),
    ]
    assert compare.main([*argv, "--predictions", *(f"{f}/predictions.safetensors" for f in folders)]) == 0
    return [
        *common,
        *("--tables-dir", "results/digits", "--output", "results/digits/report.html"),
        *("--run-json", "results/digits/report.run.json", "--events", "logs/report/digits.events.jsonl"),
        *("--runs", *(f"{f}/run.json" for f in folders)),
    ]


class Outline(HTMLParser):
    """Collects tags, attributes and text, and checks that tags nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page():
    return Path("results/digits/report.html").read_text()


def test_the_page_says_what_is_shown_how_it_was_measured_and_where_it_ran(project):
    assert report.main(make(fake_runs.study())) == 0
    out = Outline(page())
    assert "Where should attention come from?" in out.text
    assert "Model I_1 & 100 %: Highest mean test accuracy: impulse" in out.text
    assert re.search(r"impulse beats random by [\d.]+ points \(95 % interval [\d.]+ to [\d.]+\)", out.text)
    assert "No difference to random is shown for: mimetic, copy_other" in out.text
    assert "test measured once after the last epoch" in out.text
    assert "training GFLOP" in out.text
    assert "Provenance" in out.text
    assert "0123456789abcdef" in out.text
    assert "cpu (Model <X>)" in out.text
    assert "train_student/digits/impulse/seed2" in out.text
    assert out.tags.count("table") == 2 * 3 + 2


def test_every_number_of_the_tables_is_on_the_page(project):
    report.main(make(fake_runs.study()))
    text = Outline(page()).text
    for line in Path("results/digits/table.md").read_text().splitlines():
        if line.startswith("| impulse"):
            for cell in line.strip("| ").split(" | "):
                assert cell.replace("\\", "") in text


def test_the_page_asks_nothing_of_the_network_and_runs_no_script(project):
    report.main(make(fake_runs.study()))
    out = Outline(page())
    assert not {"script", "link", "img", "iframe", "object"} & set(out.tags)
    assert not {k for k, _ in out.attributes} & {"src", "href", "onclick", "onload"}
    assert "http" not in page().replace("http-equiv", "")
    assert "url(" not in page()
    assert "prefers-color-scheme: dark" in page()


def test_text_from_settings_is_escaped(project):
    made = fake_runs.study(title="<b>bold</b> & more")
    report.main(make(made))
    assert "<b>" not in page()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in page()


def test_all_but_the_provenance_is_the_same_on_another_machine(project):
    argv = make(fake_runs.study())
    report.main(argv)
    first = page()
    report.main(argv)
    assert page() == first
    for path in Path("runs").rglob("run.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "device": "cuda (another)", "seconds": {"total": 1.0}}))
    report.main(argv)
    assert page() != first
    cut = re.compile("<!-- provenance -->.*<!-- /provenance -->", re.DOTALL)
    assert cut.sub("", page()) == cut.sub("", first)


def test_one_seed_makes_a_page_that_claims_nothing(project):
    assert report.main(make(fake_runs.study(seeds=(0,)))) == 0
    text = Outline(page()).text
    assert "One seed shows no difference" in text
    assert " beats " not in text


def test_the_record_names_tables_and_runs_as_inputs(project):
    report.main(make(fake_runs.study(seeds=(0, 1))))
    inputs = json.loads(Path("results/digits/report.run.json").read_text())["inputs"]
    data = sorted(p for p in inputs if not p.startswith("src/"))
    assert [p for p in data if p.startswith("results/")] == [
        f"results/digits/{n}" for n in ("comparisons.csv", "metrics.json", "results.csv", "table.csv")
    ]
    assert len(data) == 4 + 6 * 2


def test_a_missing_table_is_a_one_line_error(project, capsys):
    argv = make(fake_runs.study(seeds=(0, 1)))
    os.unlink("results/digits/table.csv")
    assert report.main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: results/digits/table.csv")
    assert err.count("\n") == 1


def test_torch_is_not_imported(project):
    argv = make(fake_runs.study(seeds=(0, 1)))
    assert fake_runs.imported("report", argv, ("torch", "sklearn", "scipy", "pandas", "mlflow")) == []
