import os

from attnprior import files
from attnprior.data import datasets
from attnprior.data.download import Archive
from attnprior.data.sources.common import OFFICIAL
from attnprior.stages import fetch_dataset
from tests.dataset import archives
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


def test_a_local_archive_is_an_input_of_the_job_and_a_missing_one_names_its_key(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    settings = archives.official("folder", path="mine.tar", test=2, channels=1, skip_bad=False)
    assert fetch_dataset.main(commands.fetch(settings)) == 1
    told = "datasets.digits.path is 'mine.tar', but there is no file mine.tar"
    assert told in capsys.readouterr().err
    images = archives.pixels(12, 1, 8)
    content = {f"{'ab'[i % 2]}/{i}.png": archives.encoded(x) for i, x in enumerate(images)}
    (tmp_path / "mine.tar").write_bytes(archives.tar(content, "w"))
    assert fetch_dataset.main(commands.fetch(settings)) == 0
    record = files.read_json("data/digits.run.json")
    assert record["inputs"]["mine.tar"] == files.sha256("mine.tar")


def test_errors_of_a_derived_entry_name_that_of_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNPRIOR_MIRRORS", raising=False)
    monkeypatch.delenv("ATTNPRIOR_DOWNLOADS", raising=False)
    name = "cifar-10-python.tar.gz"
    monkeypatch.setitem(OFFICIAL, name, Archive(name, "0" * 32, (f"http://127.0.0.1:1/{name}",)))
    settings = archives.official("cifar10")
    params = {"datasets.set__smoke": settings | {"train": 100}, "datasets.set": settings, "scales.smoke": {}}
    arguments = ["--dataset", "set__smoke", "--output", "data/x.safetensors", "--run-json", "data/run.json"]
    assert fetch_dataset.main([*arguments, *commands.common("fetch_dataset", "set__smoke", params)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: datasets.set: {name} cannot be downloaded (")
    assert "by hand and put it into data/downloads, or name it in datasets.set.path" in error
    assert "smoke" not in error


def test_an_error_names_no_file_for_the_entry_may_stand_in_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in commands.DATASET.items() if k != "val"}
    assert fetch_dataset.main(commands.fetch(settings)) == 1
    assert capsys.readouterr().err == "error: missing key datasets.digits.val, needed by 'sklearn_digits'\n"
