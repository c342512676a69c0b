# What all rules share: checked settings, wildcard patterns, the environment of jobs.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir, "src")))  # the code of this checkout

from attnprior import published
from attnprior.data.rules import present_files
from attnprior.source import code_files
from attnprior.workflow import environment, graph, mapped, params as settings

environment.check_config(config)
environment.set_environment(workflow.basedir)


def grown(amount):
    """A resource of a rule: `amount` for the first attempt, twice that for the second, and so on.

    Profiles say how many attempts there are, and by `resources` how much a job may ask for at most.
    """
    return lambda wildcards, attempt: amount * attempt


wildcard_constraints:
    dataset="[a-z][a-z0-9_]*",
    teacher="[a-z][a-z0-9_]*",
    fit="[a-z][a-z0-9_]*",
    student="[a-z][a-z0-9_]*",
    study="[a-z][a-z0-9_]*",
    seed="[0-9]+",
