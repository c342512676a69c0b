"""Containerfile and conda file name the versions of constraints/, and enough of them."""

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

from attnprior.source import code_files
from tests.test_packaging import DISTRIBUTIONS, MINORS, ROOT, pins
from tests.workflow import project as projects

RULES = re.findall(
    r"^rule (\w+):", "\n".join(p.read_text() for p in (ROOT / "workflow/rules").glob("*.smk")), re.MULTILINE
)
IMAGE = (ROOT / "Containerfile").read_text(encoding="utf-8")
ENVIRONMENT = yaml.safe_load((ROOT / "workflow/envs/stages.yaml").read_text(encoding="utf-8"))


def conda_pins() -> dict[str, str]:
    lines = ENVIRONMENT["dependencies"][-1]["pip"]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def conda_python() -> str:
    return next(d for d in ENVIRONMENT["dependencies"] if str(d).startswith("python=")).partition("=")[2]


def test_conda_file_has_the_versions_of_the_constraints():
    versions = dict(pins(conda_python()))
    assert conda_pins() == {name: versions[name] for name in conda_pins()}


def test_conda_file_has_every_library_that_a_stage_imports():
    assert len(RULES) == 10
    imported = set()
    for path in {Path(ROOT, f) for rule in RULES for f in code_files(rule)}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            imported |= {n.partition(".")[0] for n in names}

    libraries = imported - set(sys.stdlib_module_names) - {"attnprior"}
    assert {DISTRIBUTIONS.get(n, canonicalize_name(n)) for n in libraries} == set(conda_pins())


def test_jobs_in_a_conda_environment_find_the_code_of_the_checkout():
    # Snakemake takes PYTHONPATH away from them otherwise, and the package is not installed there.
    profile = yaml.safe_load((ROOT / "profiles/default/config.yaml").read_text(encoding="utf-8"))
    assert profile["conda-not-block-search-path-envvars"] is True


def test_image_has_a_supported_python_the_constraints_and_no_versions_of_its_own():
    base = re.search(r"^ARG BASE=\S+/python:(3\.\d+)-\S+$", IMAGE, re.MULTILINE)
    assert base is not None
    assert base[1] in MINORS and base[1] == conda_python()
    commands = "".join(line for line in IMAGE.splitlines(True) if not line.startswith(("#", "ARG BASE")))
    assert "-c $constraints" in commands and "constraints/py$(python3" in commands
    assert not re.search(r"==|\d+\.\d+", commands)


def test_image_runs_as_a_user_without_rights_and_holds_what_pip_reads():
    assert re.findall(r"^USER (\S+)$", IMAGE, re.MULTILINE)[-1] not in ("root", "0")
    taken = {
        line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")
    }
    assert taken == {"LICENSE", "README.md", "constraints", "pyproject.toml", "src"}
    assert all((ROOT / name).exists() for name in taken)


STAND_IN = """\
#!/bin/sh
# Says that it is apptainer, notes what it is asked and runs the command here.
[ "$1" = --version ] && echo "apptainer version 1.3.4" && exit
echo "$*" >>{calls}
for command; do :; done
exec bash -c "$command"
"""


@pytest.mark.workflow
def test_jobs_run_in_the_image_that_the_environment_names(tmp_path):
    """Apptainer cannot be had everywhere: a stand-in shows what it would be asked for."""
    project = projects.create(tmp_path / "project")
    (tmp_path / "bin").mkdir()
    program, calls, image = tmp_path / "bin/apptainer", tmp_path / "calls", tmp_path / "attnprior.sif"
    program.write_text(STAND_IN.format(calls=calls))
    program.chmod(0o755)
    image.touch()
    path = os.pathsep.join([str(tmp_path / "bin"), projects.environment()["PATH"]])
    run = ("run", "--", "--sdm", "apptainer", "--until", "fetch_dataset")
    project.attnprior(*run, PATH=path)
    assert not calls.exists() and (project.root / "data/digits.safetensors").exists()
    shutil.rmtree(project.root / "data")
    project.attnprior(*run, PATH=path, ATTNPRIOR_IMAGE=str(image))
    (asked,) = calls.read_text().splitlines()
    assert asked.startswith(f"exec --home {project.root} ")
    assert f" {image} bash -c " in asked and "-m attnprior.stages.fetch_dataset --dataset digits" in asked
    # The engines agree that where a job ran makes nothing stale.
    assert "fetch_dataset/digits" not in project.planned() | project.snakemake_planned()
