"""What Snakemake thinks of every job, also of those below a job that it wants to repeat.

Private interfaces of Snakemake, for tests only; those that the package needs are in
`attnprior.workflow.engines`.
"""

import os

from attnprior.workflow.engines import LARGEST_CHECKSUM, Graph, Job


def planned(graph: Graph) -> set[str]:
    """Return the keys of the jobs that Snakemake would run."""
    return {j.key for j in graph.jobs if graph._workflow.dag.needrun(j.handle)}


def own_causes(graph: Graph, plan: set[str]) -> set[str]:
    """Return the keys of the jobs that Snakemake would run if nothing before them were run.

    Snakemake stops looking below a job that it wants to repeat, so the questions that it asks of a job
    (are outputs missing; are settings, code, the set of inputs or the content of a newer input other than
    it has recorded) are asked here of every job of its `plan`.
    """
    return {j.key for j in graph.jobs if j.own_cause or (j.key in plan and _cause(graph, j))}


def _cause(graph: Graph, job: Job) -> bool:
    persistence, handle = graph._workflow.persistence, job.handle
    if not all(map(os.path.exists, job.outputs)):
        return True
    made = min(os.stat(f).st_mtime for f in job.outputs)
    newer = [f for f in handle.input if not os.path.exists(f) or os.stat(f).st_mtime > made]
    return bool(
        not persistence.has_metadata(handle)
        or persistence.params_changed(handle)
        or any(persistence.input_changed(handle))
        or any(persistence.code_changed(handle))
        or any(_other_content(graph, handle, f) for f in newer)
    )


def _other_content(graph: Graph, handle, path) -> bool:
    recorded = graph._workflow.persistence.input_checksums(handle, path)
    return len(recorded) != 1 or not graph._run(path.is_same_checksum(recorded.pop(), LARGEST_CHECKSUM))
