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


def each(amount):
    """What a training asks for: `amount` for each process that shares it, as its recipe says."""

    def asked(wildcards):
        if "student" in wildcards.keys():
            keys = graph.student_keys(config, wildcards.student)
        else:
            keys = graph.teacher_keys(config, wildcards.teacher)
        return amount * graph.processes(config, keys)

    return asked


def grown(amount):
    """A resource of a rule: `amount` for the first attempt, twice that for the second, and so on.

    Profiles say how many attempts there are, and by `resources` how much a job may ask for at most.
    """
    return lambda wildcards, attempt: attempt * (
        amount(wildcards) if callable(amount) else amount
    )


wildcard_constraints:
    dataset="[a-z][a-z0-9_]*",
    teacher="[a-z][a-z0-9_]*",
    fit="[a-z][a-z0-9_]*",
    student="[a-z][a-z0-9_]*",
    study="[a-z][a-z0-9_]*",
    seed="[0-9]+",
