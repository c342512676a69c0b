import os

from attnprior import files
from attnprior.data import datasets
from attnprior.stages import fetch_dataset
from tests.stages import commands


def test_the_stage_writes_the_data_file_and_its_record(made):
    data = datasets.load(made / "data/digits.safetensors")
    assert data.images.shape == (1797, 1, 8, 8)
    record = files.read_json(made / "data/digits.run.json")
    assert record["job"] == "fetch_dataset/digits"
    path = "data/digits.safetensors"
    assert record["outputs"] == {path: files.sha256(made / path)}


def test_wrong_settings_fail_in_one_line_without_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fetch_dataset.main(commands.fetch({**commands.DATASET, "source": "sklearn_digit"})) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not os.path.exists("data/digits.safetensors")
