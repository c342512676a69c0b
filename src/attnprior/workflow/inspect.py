"""Commands that look: `sync`, `check`, `study list`."""

from attnprior.workflow import capacity, check, graph, params, sync
from attnprior.workflow.engines import Stages, snakemake_graph
from attnprior.workflow.lock import run_lock
from attnprior.workflow.show import operations
from attnprior.workflow.state import Hashes
from attnprior.workflow.studyfiles import file_of


def sync_command() -> int:
    """Renew the generated files and correct Snakemake's records after files came from elsewhere."""
    settings = params.load()
    with run_lock():
        for path in sync.write_generated(settings):
            print(f"attnprior: {path} written")
        with snakemake_graph() as jobs:
            found = sync.reconcile(jobs, Hashes())
    print(
        f"attnprior: {len(jobs.jobs)} jobs, {len(found.adopted)} taken over as finished,"
        f" {len(found.distrusted)} marked to be made again, {len(found.planned)} to run"
    )
    return 0


def check_command() -> int:
    """Check all settings, compare the declarations of both engines, and return 0 if they agree."""
    settings = params.load(every=True)
    with snakemake_graph() as jobs, Stages() as stages:
        lines = check.disagreements(settings, jobs, stages)
        print("\n".join(lines) or check.summary(jobs, stages))
    return 1 if lines else 0


def list_studies() -> int:
    """Print a line for each study of each file: active or not, arms, seeds, jobs, operations, title."""
    settings = params.load()
    files: dict[str, list[str]] = {}
    for name in settings["studies"]:
        files.setdefault(file_of(settings, f"studies.{name}"), []).append(name)
    width = max(map(len, settings["studies"]))
    print(f"{'study':{width}}          arms x seeds   jobs  training")
    for path, names in files.items():
        print(f"{path}:")
        for name in names:
            study, size = settings["studies"][name], capacity.size_of(settings, name)
            mark = "active" if name in settings["active"] else ""
            arms = f"{len(graph.study_arms(settings, name))} x {len(study['seeds'])}"
            jobs, work = (f"{size.jobs:,}", operations(size.flops)) if size else ("?", "not known")
            print(f"{name:{width}}  {mark:6}  {arms:>12} {jobs:>6}  {work:>11}  {study['title']}")
    return 0
