"""The command line of a stage, from the declaration of its rule."""

import argparse
import json
from dataclasses import dataclass
from typing import Any

from attnprior.errors import UserError


@dataclass(frozen=True)
class Stage:
    """A rule's command line. Names ending in `?` are optional, those ending in `*` take several paths."""

    rule: str
    wildcards: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: tuple[str, ...] = ()  # other paths
    checkpoint: bool = False  # takes --checkpoint DIR; `work` must call `Job.resume`
    shared: bool = False  # several processes may share the work, as the recipe says (attnprior.stages.launch)


def parser(stage: Stage) -> argparse.ArgumentParser:
    """Return the argument parser of a stage."""
    made = argparse.ArgumentParser(prog=f"python -m attnprior.stages.{stage.rule}", allow_abbrev=False)
    made.add_argument("--params", required=True, metavar="JSON", help="object of dotted params.yaml keys")
    made.add_argument(
        "--threads", required=True, type=int, metavar="N", help="CPU threads granted to the job"
    )
    made.add_argument("--run-json", required=True, metavar="F", help="record of the run, written last")
    made.add_argument("--events", required=True, metavar="F", help="event log, JSON lines")
    for name in stage.wildcards:
        made.add_argument(f"--{name}", required=True, type=int if name == "seed" else str)
    for name in (
        *stage.inputs,
        *stage.outputs,
        *stage.options,
        *(["checkpoint"] if stage.checkpoint else []),
    ):
        flag = "--" + name.rstrip("?*").replace("_", "-")
        # An optional input that a job does not use arrives as a flag without a path.
        nargs = {"*": "+", "?": "?"}.get(name[-1])
        made.add_argument(flag, required=name[-1] != "?", nargs=nargs, metavar="F")
    return made


def parse_params(text: str) -> dict[str, Any]:
    """Return the JSON object of `--params`.

    Raises:
        UserError: it is no JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as e:
        raise UserError(f"--params: not valid JSON ({e}); give an object of dotted params.yaml keys") from e
    if not isinstance(found, dict):
        raise UserError("--params: not a JSON object; its keys are dotted params.yaml keys")
    return found
