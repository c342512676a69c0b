"""Every shipped profile is read by the real Snakemake, and plans the small project."""

import shutil
from importlib import util
from pathlib import Path

import pytest
import yaml

from tests.workflow.project import ROOT

FOLDER = ROOT / "workflow/profiles"
NAMES = sorted(p.parent.name for p in FOLDER.glob("*/config.yaml"))
PLUGINS = {
    "slurm": ["snakemake_executor_plugin_slurm"],
    "generic": ["snakemake_executor_plugin_cluster_generic"],
    "remote": ["snakemake_executor_plugin_cluster_generic"],
    "kubernetes": ["snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_s3"],
}


def needs(name):
    missing = [p for p in PLUGINS.get(name, []) if util.find_spec(p) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def test_all_profiles_are_there_and_described():
    assert NAMES == ["default", "generic", "gpu", "kubernetes", "remote", "slurm"]
    text = (FOLDER / "README.md").read_text()
    assert [n for n in NAMES if f"| `{n}` |" not in text] == []


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("default", "gpu", "kubernetes")])
def test_a_batch_system_gets_limits_for_each_job(name):
    values = yaml.safe_load((FOLDER / name / "config.yaml").read_text())
    assert set(values["set-resource-scopes"]) == {"mem_mb", "runtime"}  # else the sum of all jobs is limited
    assert values["retries"] and values["rerun-incomplete"] and values["keep-going"]


def test_kubernetes_profile_is_read():
    needs("kubernetes")
    from attnprior.workflow.scheduler import snakemake_options

    options = snakemake_options(["--profile", str(FOLDER / "kubernetes")])
    assert (options.executor, options.default_storage_provider) == ("kubernetes", "s3")


@pytest.mark.workflow
@pytest.mark.parametrize("name", [n for n in NAMES if n != "kubernetes"])  # it would ask the storage
def test_snakemake_plans_with_the_profile(name, project):
    needs(name)
    shutil.rmtree(project.root / "runs")
    done = project.snakemake("-n", "--profile", f"workflow/profiles/{name}")
    assert "train_student" in done.stdout


@pytest.mark.workflow
@pytest.mark.parametrize("name", [n for n in NAMES if n != "kubernetes"])
def test_what_is_finished_is_finished_with_every_profile(name, finished):
    needs(name)
    done = finished.attnprior("run", "-n", "--", "--profile", f"workflow/profiles/{name}")
    assert done.stdout.splitlines()[-1].startswith("0 of "), done.stdout
    assert "Nothing to be done" in finished.snakemake("-n", "--profile", f"workflow/profiles/{name}").stdout


@pytest.mark.workflow
def test_resources_grow_with_attempts_up_to_the_limit_of_the_profile(project, monkeypatch):
    needs("generic")
    monkeypatch.chdir(project.root)
    from attnprior.workflow.engines import snakemake_graph
    from attnprior.workflow.scheduler import snakemake_options

    options = snakemake_options(
        ["--profile", "workflow/profiles/generic", "--resources", "mem_mb=1500", "runtime=1440"]
    )
    with snakemake_graph(options=options) as graph:
        job = next(j for j in graph.jobs if j.rule == "train_student")
        found = [graph.resources(job, attempt) for attempt in (1, 2, 3)]
    assert [r["mem_mb"] for r in found] == [1000, 1500, 1500]
    assert [r["runtime"] for r in found] == [60, 120, 180]
    assert [r["gpu"] for r in found] == [0, 0, 0]


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "nowhere"], "--profile nowhere: no such profile; shipped are"),
        (["--executor", "nothing"], "executor 'nothing': its plugin is not installed"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_wrong_arguments_are_one_line_before_anything_happens(finished, arguments, message):
    done = finished.attnprior("run", "--", *arguments, ok=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line]
    assert len(errors) == 1 and errors[0].startswith("error: ") and message in errors[0]
    assert not Path(finished.root, ".snakemake/locks").exists() or not any(
        Path(finished.root, ".snakemake/locks").iterdir()
    )
