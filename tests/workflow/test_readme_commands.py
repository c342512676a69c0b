"""The commands in the README work, in the order in which they stand there."""

import re
import shlex
import subprocess
import sys

import pytest

from attnprior import cli
from tests.workflow.project import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]


def test_the_readme_shows_commands():
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_targets_exist(command):
    done = subprocess.run(
        [*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_constraint_files_and_inline_commands_exist():
    for path in re.findall(r"constraints/py\d+\.txt", TEXT):
        assert (ROOT / path).is_file()
    for command in re.findall(r"`attnprior ([a-z]+)[^`]*`", TEXT):
        if command not in ("run", "study", "did"):
            assert command in cli.parser().format_help()


def test_commands_run_in_order(project, tmp_path):
    """Servers, installations and make are left out; a shared folder is one of this test."""
    ran = []
    for command in COMMANDS:
        words = shlex.split(command.replace("/path/to/shared/folder", str(tmp_path / "shared")))
        if words[0] in ("make", "pip") or words[:2] == ["attnprior", "ui"]:
            continue
        if words[0] == "attnprior":
            cli.parser().parse_args(words[1:])
            project.attnprior(*words[1:])
        elif words[0] in ("dvc", "snakemake"):
            project.sh(sys.executable, "-m", *words)
        else:
            assert words[0] == "ls", f"README shows {command!r}, which is not tested"
            project.sh(*words)
        ran.append(command)
    assert len(ran) >= 12


def test_every_message_in_the_table_of_failures_is_in_the_code():
    section = TEXT.split("## When it fails")[1].split("## ")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    code = " ".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "src").rglob("*.py")))
    code = re.sub(r'"\s+f?"', "", code).replace("`", "")
    assert len(messages) >= 5
    for message in messages:
        fixed = [part.strip() for part in re.split(r"…|\(process", message) if len(part.strip()) > 3]
        assert all(part in code for part in fixed), (message, fixed)


def test_the_results_table_is_the_one_that_the_pipeline_wrote():
    """Numbers in the README are generated: they follow from the recorded metrics of the study."""
    import json

    table = TEXT.split("<!-- results:digits -->")[1].split("<!-- /results:digits -->")[0]
    metrics = json.loads((ROOT / "results/digits/metrics.json").read_text())
    arms = 0
    for panel in metrics.values():
        for values in panel.values():
            mean, spread = 100 * values["top1_mean"], 100 * values["top1_std"]
            assert f"{mean:.1f} ± {spread:.1f} ({values['seeds']})" in table
            arms += 1
    assert arms == 14
