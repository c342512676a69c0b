"""`attnprior track`: MLflow brought up to date, with models and system metrics where they are asked for."""

from functools import partial
from pathlib import Path

from attnprior.workflow import params
from attnprior.workflow.tracking import Extra, track


def track_command(models: list[str] | None, *, system: bool) -> int:
    """Track once, print what was added and return 0; problems of MLflow are a warning.

    `models` are the arms whose students become MLflow models: None for none, empty for all.

    Raises:
        UserError: no active study has such an arm.
    """
    extras: list[Extra] = []
    if system:
        from attnprior.workflow.mlflow_system import system_metrics

        extras.append(system_metrics)
    if models is not None:
        from attnprior.workflow.mlflow_models import log_models, wanted_jobs

        extras.append(partial(log_models, wanted=wanted_jobs(params.load(), models)))
    print(track(Path("."), extras=extras))
    return 0
