"""`attnprior make`: what `dvc.yaml` calls. Makes the stale jobs of some rules below given targets."""

import subprocess
import sys

from attnprior.errors import UserError
from attnprior.workflow import environment, experiment, params, sync
from attnprior.workflow.engines import snakemake_graph
from attnprior.workflow.state import Hashes


def make(rules: list[str], targets: list[str]) -> int:
    """Bring `targets` up to date with jobs of `rules` only, and return the exit status.

    DVC has decided that everything before is in place, and holds its locks: nothing here calls DVC.
    The files are judged by content first, since a checkout or a workspace made by `dvc exp run`
    has no Snakemake metadata that could be trusted.

    Raises:
        UserError: the generated files do not follow from params.yaml, or a setting is wrong.
    """
    outdated = sync.outdated(params.load())
    if outdated:
        raise UserError(
            f"{outdated[0]} does not follow from params.yaml (a changed name, seed or study);"
            " run `attnprior sync`, then again"
        )
    with snakemake_graph(targets, rules) as jobs:
        jobs.jobs = [j for j in jobs.jobs if j.rule in rules]
        found = sync.reconcile(jobs, Hashes())
    if not found.planned:
        print(f"attnprior: nothing to do, {len(jobs.jobs)} jobs are current")
        return 0
    command = [sys.executable, "-m", "attnprior.workflow.scheduler", "--quiet", "all", "--rerun-incomplete"]
    command += ["--allowed-rules", *rules, "--", *targets]
    env = environment.child_environment()
    if called := experiment.name():
        env["ATTNPRIOR_INVOCATION"] = called
    try:
        return subprocess.run(command, env=env, check=False).returncode
    finally:
        experiment.keep_logs()
