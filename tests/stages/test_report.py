import base64
import csv
import hashlib
import json
import os
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnprior.stages import compare, report
from tests.stages import fake_runs


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A study of two seeds with all that the page needs, and the command line; never changed."""
    root = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return root, make(fake_runs.study(seeds=(0, 1)))


@pytest.fixture
def prepared(ready, tmp_path, monkeypatch):
    """A copy of the study as working directory; its command line."""
    shutil.copytree(ready[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return ready[1]


def make(made):
    folders = [os.path.relpath(f) for f in fake_runs.make_runs(Path.cwd(), made)]
    params = json.dumps(fake_runs.params(made))
    common = ["--params", params, "--threads", "1", "--study", "digits"]
    argv = [*common, "--out-dir", "results/digits", "--run-json", "results/digits/run.json"]
    argv += [
        "--events",
        "logs/compare/digits.events.jsonl",
        "--metrics",
        *(f"{f}/metrics.json" for f in folders),
    ]
    assert compare.main([*argv, "--predictions", *(f"{f}/predictions.safetensors" for f in folders)]) == 0
    left_out = ("impulse",) if "labels_50" in made["panels"] else ("impulse", "labels")
    fake_runs.write_figures(Path("results/digits/figures"), left_out)
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
        if tag not in ("meta", "link", "img", "br", "input"):
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
    assert "Model I_1 & 100 %: impulse has the highest mean test accuracy, " in out.text
    assert "Highest mean test accuracy: impulse" in out.text
    assert re.search(r"impulse beats random by [\d.]+ points \(95 % interval [\d.]+ to [\d.]+\)", out.text)
    assert "No difference to random is shown for: mimetic." in out.text
    assert "No difference to random is shown for: the control copy_other." in out.text
    assert "Teacher and fit seed = student seed" in out.text
    assert "test measured once after the last epoch" in out.text
    assert "training GFLOP" in out.text
    assert "Provenance" in out.text
    assert "0123456789abcdef" in out.text
    assert "cpu (Model <X>)" in out.text
    assert "digits / impulse / seed 2" in out.text
    assert out.tags.count("table") == 2 * 3 + 1


def test_the_answer_and_the_figure_that_shows_it_come_first(project):
    report.main(make(fake_runs.study()))
    order = [
        page().index(t)
        for t in ('class="headline"', "Title accuracy", "<table", "Title curves", 'class="cards"')
    ]
    assert order == sorted(order)


def test_figures_have_their_captions_and_one_left_out_says_so(project):
    report.main(make(fake_runs.study(seeds=(0, 1))))
    out = Outline(page())
    for name in ("accuracy", "curves", "confusion"):
        assert f"Title {name}. What {name} shows." in out.text
        assert ("id", f"{name}-p") in out.attributes
    assert "Title impulse. What impulse shows." in out.text
    assert out.tags.count("figure") == 6
    ids = [v for k, v in out.attributes if k == "id" and v.endswith("-p")]
    assert len(ids) == len(set(ids)) == 6  # each once: prefixed by its figure


def test_each_run_has_a_card_with_settings_hashes_machine_curve_and_links(project):
    report.main(make(fake_runs.study(seeds=(0, 1))))
    cards = page().split("<li data-")[1:]
    assert len(cards) == 6 * 2
    card = next(c for c in cards if "digits / impulse / seed 1" in c)
    text = Outline("<ul><li data-" + card.split("</li>")[0] + "</li></ul>").text
    assert "init.source impulse, labels 200" in text
    assert "sha256 " + "ab" * 32 in text
    assert "commit 0123456789abcdef, 1 source files" in text
    assert "cpu (Model <X>), 1 thread" in text
    assert "python 3.11.9, torch 2.9.0" in text
    assert 'aria-label="validation top-1 by epoch, last ' in card
    with open("results/digits/results.csv", newline="") as f:
        rows = [r for r in csv.DictReader(f) if (r["arm"], r["seed"], r["split"]) == ("impulse", "1", "test")]
    top1 = next(float(r["value"]) for r in rows if r["metric"] == "top1")
    assert f"{100 * top1:.1f} % test top-1" in text
    for link in re.findall('href="(.*?)"', card):
        assert link.startswith("../../")
        assert not link.startswith("../../runs") or Path("results/digits", link).is_file()


def test_runs_can_be_read_without_the_script_and_the_controls_appear_with_it_only(project):
    report.main(make(fake_runs.study(seeds=(0, 1))))
    assert '<form class="tools" hidden>' in page()
    assert "tools.hidden = false" in page()
    assert "<li hidden" not in page()


def test_every_number_of_the_tables_is_on_the_page(project):
    report.main(make(fake_runs.study()))
    text = Outline(page()).text
    for line in Path("results/digits/table.md").read_text().splitlines():
        if line.startswith("| impulse"):
            for cell in line.strip("| ").split(" | "):
                assert cell.replace("\\", "") in text


def test_the_page_asks_nothing_of_the_network_and_runs_only_its_own_script(project):
    report.main(make(fake_runs.study()))
    out = Outline(page())
    assert not {"link", "img", "iframe", "object"} & set(out.tags)
    assert not {k for k, _ in out.attributes} & {"src", "onclick", "onload"}
    assert all(v.startswith(("../../", "#")) for k, v in out.attributes if k == "href")
    assert "http" not in page().replace("http-equiv", "")
    assert set(re.findall(r"url\((.)", page())) == {"#"}
    (script,) = re.findall("<script>(.*?)</script>", page(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page()
    assert "default-src 'none'" in page()
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
    assert "One seed: no interval, no test." in text
    assert "one seed: no interval, no test (n = 1)." in text
    assert " beats " not in text


def test_a_study_of_label_budgets_leads_with_its_figure_and_a_sentence_per_family(project):
    assert report.main(make(fake_runs.labels_study(seeds=(0, 1)))) == 0
    text = page()
    order = [
        text.index(t) for t in ("Largest number of labels", "Title labels", "By number of labels", "<table")
    ]
    assert order == sorted(order) and text.index("Title accuracy") > order[-1]
    assert "vit_copy: no difference to random is shown" in text
    assert "permuted was trained on permuted labels" in text and "one of 4 classes, is 25.0 %" in text


def test_one_seed_and_panels_of_a_baseline_alone_still_make_a_page(project):
    made = fake_runs.labels_study(seeds=(0,))
    made["panels"]["alone"] = {"title": "Alone", "baseline": "mimetic", "arms": ["mimetic"], "controls": []}
    assert report.main(make(made)) == 0
    text = Outline(page()).text
    assert "One seed: no interval, no test; no difference is shown at any number of labels." in text
    assert "mimetic is the only arm: nothing is compared." in text


def test_the_record_names_tables_and_runs_as_inputs(project):
    report.main(make(fake_runs.study(seeds=(0, 1))))
    inputs = json.loads(Path("results/digits/report.run.json").read_text())["inputs"]
    data = sorted(p for p in inputs if not p.startswith("src/"))
    assert [p for p in data if p.startswith("results/")] == [
        f"results/digits/{n}"
        for n in (
            "comparisons.csv",
            "figures/accuracy.svg",
            "figures/attention.svg",
            "figures/captions.json",
            "figures/confusion.svg",
            "figures/curves.svg",
            "figures/impulse.svg",
            "figures/labels.svg",
            "figures/reconstruction.svg",
            "figures/redundancy.svg",
            "metrics.json",
            "results.csv",
            "table.csv",
        )
    ]
    assert len(data) == 13 + 6 * 2 * 2


def test_a_missing_table_is_a_one_line_error(project, capsys):
    argv = make(fake_runs.study(seeds=(0, 1)))
    os.unlink("results/digits/table.csv")
    assert report.main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: results/digits/table.csv")
    assert err.count("\n") == 1


def test_torch_is_not_imported(project):
    argv = make(fake_runs.study(seeds=(0, 1)))
    assert (
        fake_runs.imported("report", argv, ("torch", "sklearn", "scipy", "pandas", "mlflow", "matplotlib"))
        == []
    )


def test_a_thousand_runs_are_a_page_of_a_few_megabytes(prepared):
    made = fake_runs.study(seeds=(0, 1))
    begin = time.perf_counter()
    text = fake_runs.large_page(made, 1000)
    print(f"1,000 runs: {time.perf_counter() - begin:.1f} s, {len(text) / 1e6:.1f} MB")
    assert len(text) < 10_000_000
    assert text.count("<li data-") == 1000
