"""What Snakemake thinks of every job, also of those below a job that it wants to repeat.

Private interfaces of Snakemake, for tests only; those that the package needs are in
`attnprior.workflow.engines`.
"""

import os

from attnprior.workflow.engines import LARGEST_CHECKSUM, Graph, Job


def planned(graph: Graph) -> set[str]:
    """Return the keys of the jobs that Snakemake would run."""
    return {j.key for j in graph.jobs if graph._workflow.dag.needrun(j.handle)}


def own_causes(graph: Graph) -> dict[str, set[str]]:
    """Return {job: why Snakemake would run it if nothing before it were run}, without jobs that it would not.

    Snakemake stops looking below a job that it wants to repeat, so the questions that it asks of a job
    are asked here of every job of its plan: are outputs missing; are settings, code, the set of inputs
    or the content of a newer input other than it has recorded?
    """
    plan = planned(graph)
    found = {
        j.key: _causes(graph, j) or ({"other"} if j.own_cause else set()) for j in graph.jobs if j.key in plan
    }
    return {key: causes for key, causes in found.items() if causes}


def _causes(graph: Graph, job: Job) -> set[str]:
    persistence, handle = graph._workflow.persistence, job.handle
    if not all(map(os.path.exists, job.outputs)):
        return {"missing"}
    if not persistence.has_metadata(handle):
        return {"unknown"}
    made = min(os.stat(f).st_mtime for f in job.outputs)
    newer = [f for f in handle.input if not os.path.exists(f) or os.stat(f).st_mtime > made]
    asked = {
        "settings": bool(persistence.params_changed(handle)),
        "inputs": any(persistence.input_changed(handle)),
        "code": any(persistence.code_changed(handle)),
        "content": any(_other_content(graph, handle, f) for f in newer),
    }
    return {cause for cause, found in asked.items() if found}


def _other_content(graph: Graph, handle, path) -> bool:
    recorded = graph._workflow.persistence.input_checksums(handle, path)
    if recorded == {None}:
        return False  # no input before: another set of inputs
    return len(recorded) != 1 or not graph._run(path.is_same_checksum(recorded.pop(), LARGEST_CHECKSUM))
