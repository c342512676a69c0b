"""Snakemake's command line: what it sets, read before a run, and the command itself for the run."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line

LOGS = "logs/snakemake"  # of Snakemake, one for each `attnprior run`
PROFILES = "workflow/profiles"
EXTRAS = {"slurm": ".[slurm]", "cluster-generic": ".[generic]"}  # what pip installs for an executor


def options_of(argv: list[str]) -> Any:
    """Return `snakemake_options` of `argv`, or None where nothing says that jobs run elsewhere.

    An empty command line may still get an executor from SNAKEMAKE_PROFILE or the default profile. To
    read all options takes half a second, and ten with a plugin for Slurm whose controller is down.

    Raises:
        UserError: an argument, a profile or an executor is unknown.
    """
    elsewhere = argv or os.environ.get("SNAKEMAKE_PROFILE") or _default_names_executor()
    return snakemake_options(argv) if elsewhere else None


def _default_names_executor() -> bool:
    """Return whether the profile that always holds may name an executor."""
    for path in Path(PROFILES, "default").glob("*.yaml"):
        with contextlib.suppress(OSError):  # Snakemake says so
            if re.search(r"^\s*[\"']?executor\b", path.read_text(encoding="utf-8", errors="replace"), re.M):
                return True
    return False


def snakemake_options(argv: list[str]) -> Any:
    """Return what the command line `argv` and its profiles set, as Snakemake's parsed arguments.

    Raises:
        UserError: an argument, a profile or an executor is unknown.
        SystemExit: `argv` asks for help or the version, which is printed.
    """
    from snakemake.cli import parse_args
    from snakemake.exceptions import WorkflowError

    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        try:
            return parse_args(argv)[1]
        except (SystemExit, WorkflowError, OSError) as e:
            answered = isinstance(e, SystemExit) and not e.code  # --help, --version
            text = said.getvalue() if isinstance(e, SystemExit) else str(e)
    if answered:
        print(text, end="")
        raise SystemExit(0)
    last = text.strip().splitlines()[-1] if text.strip() else "see `snakemake --help`"
    if unknown := re.search(r"argument --executor/-e: invalid choice: '([\w-]+)'", text):
        package = EXTRAS.get(unknown[1], f"snakemake-executor-plugin-{unknown[1]}")
        raise UserError(f"executor {unknown[1]!r}: its plugin is not installed; pip install {package}")
    if unknown := re.search(r"profile directory given \((.*?)\)", text):
        shipped = ", ".join(sorted(str(p.parent) for p in Path(PROFILES).glob("*/config.yaml")))
        raise UserError(f"--profile {unknown[1]}: no such profile; shipped are {shipped}")
    raise UserError(f"snakemake: {one_line(last.rpartition('error: ')[2])}")


def snakemake_main(argv: list[str]) -> int:
    """Run the `snakemake` command and return its exit status, without its limit on starts per second.

    With the limit (100 per second by default, and the command line cannot switch it off) every
    finished job starts another endless chain of evaluations, one per second each; after 100 jobs
    they take a fifth of a core.
    """
    from snakemake.cli import args_to_api, parse_args

    shell_parser, args = parse_args(argv)
    if not any(a.startswith("--max-jobs-per-timespan") for a in argv):
        args.max_jobs_per_timespan = None
    return 0 if args_to_api(args, shell_parser) else 1


if __name__ == "__main__":
    sys.exit(snakemake_main(sys.argv[1:]))
