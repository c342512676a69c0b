"""What the Snakefile sets before the rules: the environment of jobs, and a check of the settings."""

import os
import subprocess
import sys
from pathlib import Path

from attnprior.errors import UserError
from attnprior.workflow import params as settings

# Nothing that we start reports to anybody.
QUIET = {"DVC_NO_ANALYTICS": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}


def check_config(config: dict) -> None:
    """Put the settings of all files in place of `params.yaml` alone, which Snakemake has read.

    Stops Snakemake with one line when the settings are wrong or differ from the files:
    `snakemake --config a=b` would change Snakemake's settings only; DVC reads the files.

    Raises:
        WorkflowError: Snakemake prints it without a traceback.
    """
    from snakemake.exceptions import WorkflowError

    try:
        params, own = settings.load(), settings.read_yaml(settings.PARAMS)
        if own != config:
            changed = sorted(k for k in {*own, *config} if own.get(k) != config.get(k))
            raise UserError(
                f"--config changes {', '.join(changed)}, which DVC would not see;"
                " edit params.yaml or use `dvc exp run -S key=value`"
            )
    except UserError as e:
        raise WorkflowError(str(e)) from None
    config.update(params)


def set_environment(root) -> None:
    """Set the environment that jobs inherit: this checkout's code, this interpreter, its commit.

    Local jobs inherit it from Snakemake, cluster jobs through the executor's export.
    """
    os.environ.update(job_environment(root))


def job_environment(root) -> dict[str, str]:
    """Return the variables of `set_environment`."""
    source = str(Path(root, "src").resolve())
    path = [source, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source)]
    programs = str(Path(sys.executable).parent)
    search = [programs, *(p for p in os.environ.get("PATH", "").split(os.pathsep) if p and p != programs)]
    return {
        **QUIET,
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": os.pathsep.join(search),
        "ATTNPRIOR_COMMIT": os.environ.get("ATTNPRIOR_COMMIT") or commit(root),
    }


def child_environment(**more: str) -> dict[str, str]:
    """Return the whole environment of a process that works in this checkout, with `more` added."""
    return {**os.environ, **job_environment("."), **more}


def commit(root) -> str:
    """Return the checked-out commit, with "-dirty" when tracked files differ from it, or ""."""
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip()
