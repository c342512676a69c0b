"""The command line: quick help, one line for every failure, tracebacks in the log."""

import subprocess
import sys
import time

import pytest

from attnprior import cli
from tests.workflow.project import ROOT, environment

LIGHT = "import sys, attnprior.cli as c; c.parser(); print([m for m in {heavy} if m in sys.modules])"


def attnprior(*args, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "attnprior", *args],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_every_command_and_imports_nothing_heavy():
    text = cli.parser().format_help()
    for command in ("run", "sync", "check", "status", "study", "track", "ui", "make"):
        assert f"\n    {command} " in text
    heavy = ["torch", "numpy", "snakemake", "dvc", "mlflow", "yaml", "jsonschema"]
    code = LIGHT.format(heavy=heavy)
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_outside_a_checkout_one_line_says_so(tmp_path):
    done = attnprior("status", cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no Snakefile here" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that passes for a checkout, so that commands can fail in it."""
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_user_error_is_one_line_and_its_traceback_is_in_the_log(checkout, capsys):
    assert cli.main(["run"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: params.yaml: cannot be read")
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" in (checkout / "logs/attnprior.log").read_text()


def test_an_unforeseen_error_is_one_line_that_names_the_log(checkout, capsys, monkeypatch):
    def broken(*_):
        raise ValueError("first\nsecond")

    monkeypatch.setattr(cli, "dispatch", broken)
    assert cli.main(["status"]) == 1
    said = capsys.readouterr().err
    assert said == "error: ValueError: first second (traceback: logs/attnprior.log)\n"
    assert "in broken" in (checkout / "logs/attnprior.log").read_text()


def test_a_log_that_cannot_be_written_does_not_hide_the_error(checkout, capsys):
    (checkout / "logs").write_text("a file where the folder should be")
    assert cli.main(["run"]) == 1
    assert capsys.readouterr().err.startswith("error: params.yaml")


@pytest.mark.parametrize("words", [["run", "digts"], ["study", "show", "digts"]])
def test_an_unknown_study_is_named_with_the_nearest(words):
    done = attnprior(*words, cwd=ROOT)
    assert done.returncode == 1
    assert (
        done.stderr == "error: no study 'digts' in params.yaml or studies/*.yaml, did you mean 'digits'?;"
        " known: see `attnprior study list`\n"
    )


def test_arguments_after_two_dashes_are_refused_where_nothing_takes_them(checkout, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["status", "--", "--cores", "1"])
    assert stop.value.code == 2
    assert "nothing may follow -- after status" in capsys.readouterr().err


def test_the_code_of_the_checkout_runs_wherever_the_command_was_installed_from(tmp_path):
    package = tmp_path / "src" / "attnprior"
    package.mkdir(parents=True)
    (tmp_path / "Snakefile").write_text("")
    (package / "__init__.py").write_text('__version__ = "of the checkout"\n')
    (package / "__main__.py").write_text("import attnprior; print(attnprior.__version__)\n")
    (package / "cli.py").write_text("")
    done = attnprior("--version", cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert done.stdout == "of the checkout\n"


@pytest.mark.slow
def test_help_takes_less_than_a_third_of_a_second():
    attnprior("--help", cwd=ROOT)
    begun = time.perf_counter()
    attnprior("--help", cwd=ROOT)
    assert time.perf_counter() - begun < 0.6  # twice the aim: the machine may be busy
