"""Make Snakemake's records and the generated files say what the files on disk are."""

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import write_text
from attnprior.source import code_files
from attnprior.workflow import cache, dvc_arms, dvc_studies
from attnprior.workflow.engines import Graph, Job
from attnprior.workflow.state import Hashes, downstream, stale_because

ARMS = "workflow/arms.yaml"
DVC = "dvc.yaml"
HEADER = "# Generated from params.yaml by `attnprior sync`; structure only. Do not edit.\n"
BEGIN = "  # --- studies: generated from params.yaml by `attnprior sync`; do not edit below ---\n"
CODE = re.compile(r"( *# code of ([a-z_, ]+)\n)((?: *- src/attnprior/.*\n)*)")


@dataclass
class Reconciled:
    """What `reconcile` found and did."""

    stale: dict[str, str]  # job key -> why
    planned: list[Job]  # stale jobs and everything downstream
    adopted: list[Job]
    distrusted: list[Job]


def reconcile(jobs: Graph, hashes: Hashes, *, write: bool = True) -> Reconciled:
    """Judge every job by content and, with `write`, correct what Snakemake has recorded.

    A job whose files are current is adopted where Snakemake would repeat it (new time stamps after
    a clone, no or another commit's metadata). A job whose files are stale is distrusted where
    Snakemake would keep it (metadata that describes other files than those on disk).
    """
    stale = {j.key: why for j in jobs.jobs if (why := stale_because(j, hashes))}
    altered = cache.altered_records()
    stale |= {j.key: f"damaged {j.run_json}" for j in jobs.jobs if j.run_json in altered}
    adopted: dict[str, Job] = {}
    for job in jobs.jobs:
        # Below a job that Snakemake wants to repeat it has not judged: what follows is adopted as well.
        follows = any(u.key in adopted for u in job.upstream)
        if job.key not in stale and (job.own_cause or not job.recorded or follows):
            adopted[job.key] = job
    distrusted = [
        j for j in jobs.jobs if j.key in stale and not j.own_cause and all(map(os.path.exists, j.outputs))
    ]
    if write:
        for job in adopted.values():
            jobs.adopt(job)
        for job in distrusted:
            jobs.distrust(job)
    return Reconciled(stale, downstream(jobs.jobs, set(stale)), list(adopted.values()), distrusted)


def arms_text(params: dict) -> str:
    """Return the content of `workflow/arms.yaml`."""
    return HEADER + _dump(dvc_arms.dvc_structure(params))


def dvc_text(params: dict, present: str) -> str:
    """Return `dvc.yaml` with its generated parts renewed: code lists, stages and plots of the studies.

    Raises:
        UserError: the line that begins the generated part is missing.
    """
    head, mark, _ = present.partition(BEGIN)
    if not mark:
        raise UserError(f"{DVC}: the line {BEGIN.strip()!r} is missing; restore it with `git checkout {DVC}`")
    body = _dump(dvc_studies.study_stages(params))
    head = re.sub(CODE, lambda m: m[1] + "".join(f"        - {f}\n" for f in _code(m[2])), head)
    stages = "".join(f"  {line}\n" for line in body.splitlines())
    return head + mark + stages + "\n" + _dump({"plots": dvc_studies.study_plots(params)})


def _code(rules: str) -> list[str]:
    return sorted({f for rule in rules.split(", ") for f in code_files(rule)})


def _changed(params: dict) -> dict[str, str]:
    """Return {path: new text} of the generated files that do not follow from `params`."""
    dvc = _read(DVC)
    files = {ARMS: (_read(ARMS), arms_text(params)), DVC: (dvc, dvc_text(params, dvc))}
    return {path: new for path, (present, new) in files.items() if new != present}


def write_generated(params: dict) -> list[str]:
    """Write the generated files that changed, and return their names."""
    changed = _changed(params)
    for path, text in changed.items():
        write_text(path, text)
    return list(changed)


def outdated(params: dict) -> list[str]:
    """Return the generated files that do not follow from `params`."""
    return list(_changed(params))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")  # a damaged one is no longer equal
    except FileNotFoundError:
        return ""


def _dump(value) -> str:
    import yaml

    stream = io.StringIO()
    yaml.dump(value, stream, Dumper=yaml.SafeDumper, sort_keys=False, width=1000, default_flow_style=False)
    return stream.getvalue()
