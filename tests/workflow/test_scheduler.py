"""What Snakemake's command line, environment and default profile set, read by the real Snakemake."""

import pytest

from attnprior.workflow import batch
from attnprior.workflow.scheduler import options_of, snakemake_options


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with a Snakefile, the default profile, and another that runs jobs elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    (tmp_path / "Snakefile").write_text("")
    for name, text in {"default": "cores: 2\n", "far": "executor: touch\njobs: 5\n"}.items():
        (tmp_path / "workflow/profiles" / name).mkdir(parents=True)
        (tmp_path / "workflow/profiles" / name / "config.yaml").write_text(text)
    (tmp_path / "profiles").symlink_to("workflow/profiles")
    return tmp_path


def test_without_arguments_options_are_read_only_where_an_executor_may_be_set(checkout, monkeypatch):
    assert options_of([]) is None
    assert options_of(["--cores", "1"]).cores == 1
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "workflow/profiles/far")
    assert (options_of([]).executor, options_of([]).jobs) == ("touch", 5)
    monkeypatch.delenv("SNAKEMAKE_PROFILE")
    (checkout / "workflow/profiles/default/config.yaml").write_text("cores: 2\nexecutor: touch\n")
    assert (options_of([]).executor, options_of([]).cores) == ("touch", 2)


def test_an_executor_of_the_default_profile_is_seen_as_remote(checkout):
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    assert not batch.is_remote(options_of([]))
    path = checkout / "workflow/profiles/default/config.yaml"
    path.write_text("jobs: 2\nexecutor: cluster-generic\ncluster-generic-submit-cmd: submit\n")
    assert batch.is_remote(options_of([]))


@pytest.mark.parametrize(("argument", "words"), [("--help", "--cores"), ("--version", "9.")])
def test_help_and_version_are_printed_and_no_error(checkout, capsys, argument, words):
    with pytest.raises(SystemExit) as end:
        snakemake_options([argument])
    assert end.value.code == 0
    assert words in capsys.readouterr().out
