"""Every combination of the papers' studies trains 50 steps through the shipped graph and makes its table row.

A study is done when each distinct combination of rule, model, init, transfer and recipe in it has; the rest
is listed as not run, with the reason. It takes hours on two cores: `make test-studies` runs it, other tests
do without.
"""

import csv
import os

import pytest
import yaml

from attnprior.workflow import studyfiles
from tests.studies.reduced import STEPS, archive, reduce
from tests.workflow import mutations, project
from tests.workflow.project import ROOT

pytestmark = pytest.mark.studies

FILES = [p for p in studyfiles.names(ROOT) if "studies" in (studyfiles.read_yaml(ROOT / p) or {})]


@pytest.mark.parametrize("path", FILES)
def test_each_combination_trains_and_has_its_row(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    small = reduce(mutations.read(), path)
    made = project.create(tmp_path / "project")
    for name, (side, chans) in small.images.items():
        archive(made.root / name, side, chans)
    (made.root / "studies").mkdir()
    (made.root / "params.yaml").write_text(yaml.safe_dump(small.params, sort_keys=False))
    (made.root / "studies/small.yaml").write_text(yaml.safe_dump(small.content, sort_keys=False))
    made.attnprior("sync")
    done = made.attnprior("run", "--", "--keep-going", ok=False)
    run, failed = [], []
    for study, arms in small.arms.items():
        rows = _table(made.root / "results" / study / "table.csv")
        dataset = small.content["studies"][study]["datasets"][0]
        for arm in arms:
            history = made.root / f"runs/{dataset}/{arm}/seed0/history.csv"
            steps = len(history.read_text().splitlines()) - 1 if history.is_file() else 0
            good = steps >= STEPS and arm in rows
            (run if good else failed).append(
                f"{study}/{arm}: {steps} steps, {'a' if arm in rows else 'no'} row"
            )
    lines = [f"{path}: {len(run)} combinations run, {len(failed)} failed, {len(small.not_run)} arms not run"]
    lines += [f"  failed   {line}" for line in failed]
    lines += [f"  not run  {where}: {why}" for where, why in small.not_run.items() if "same as" not in why]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not failed, done.stderr[-3000:]


def _table(path: os.PathLike) -> set[str]:
    """Return the arms of a study's table that have a test accuracy."""
    if not os.path.isfile(path):
        return set()
    with open(path, newline="", encoding="utf-8") as f:
        return {row["arm"] for row in csv.DictReader(f) if row["top1_mean"]}
