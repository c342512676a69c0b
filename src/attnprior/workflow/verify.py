"""`attnprior verify`: make recorded jobs again elsewhere and compare with what `dvc.lock` recorded."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnprior.errors import UserError, nearest
from attnprior.workflow import causes, closeness, dvc_arms, graph, params, rerun
from attnprior.workflow.dvc_objects import Objects, md5
from attnprior.workflow.recorded import Recorded, locked_stages

IDENTICAL, CLOSE, DIFFERENT, MISSING = (
    "identical",
    "equal within tolerance",
    "different",
    "reference not available",
)
STATUS = {IDENTICAL: 0, CLOSE: 3, DIFFERENT: 4, MISSING: 5}
RANK = (IDENTICAL, CLOSE, MISSING, DIFFERENT)  # the worst of several counts
REMEDY = "`dvc pull` brings it from the remote that the authors pushed to"


@dataclass(frozen=True)
class Plan:
    """What to make again: files in the order of the pipeline, and what must be there before."""

    name: str
    stages: list[str]  # of dvc.lock
    targets: list[str]
    rules: tuple[str, ...] = ()  # all if none
    inputs: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What the comparison of one artifact or job gave."""

    name: str
    outcome: str
    detail: str = ""
    parts: list["Outcome"] = field(default_factory=list)


def verify(target: str | None, seeds: Sequence[int], *, keep: bool, scratch: str | None) -> int:
    """Make the jobs of a study or arm again, print how they compare, and return the exit status.

    The checkout is not changed. Status: 0 identical, 3 equal within tolerance, 4 different,
    5 reference not available.

    Raises:
        UserError: no such study, arm or seed; nothing recorded; a job failed.
    """
    settings = params.load()
    plan = make_plan(settings, target, seeds)
    stages = locked_stages()
    known = [name for name in plan.stages if name in stages]
    outs = [o for name in known for o in stages[name].get("outs", [])]
    with rerun.scratch_folder(scratch, keep=keep) as folder, contextlib.ExitStack() as stack:
        objects = Objects(folder / ".recorded")
        stack.callback(objects.close)
        recorded = Recorded(outs, objects)
        artifacts = [t for t in plan.targets if not t.endswith("run.json")]
        if not any(recorded.digest(a) for a in artifacts):
            return _unavailable(plan, f"{artifacts[0]} and all others", known)
        deps = [d for name in known for d in stages[name].get("deps", [])]
        read = Recorded(deps, objects)
        inputs = {name: read.find(name) for name in plan.inputs}
        if lost := [name for name, path in inputs.items() if path is None]:
            return _unavailable(plan, f"{lost[0]}, which the jobs read", known)
        rerun.copy_code(folder)
        rerun.place(folder, {name: path for name, path in inputs.items() if path is not None})
        rerun.make(folder, plan.rules, plan.targets)
        return report(plan, folder, recorded)


def make_plan(settings: dict, target: str | None, seeds: Sequence[int]) -> Plan:
    """Return what to make again for a study, an arm (DATASET-STUDENT) or, for None, the active studies.

    Raises:
        UserError: no such study, arm or seed.
    """
    active = settings["active"]
    if target is None or target in settings["studies"]:
        studies = active if target is None else [target]
        return _study_plan(settings, ", ".join(studies), studies, seeds)
    arms = {a.key: a for a in graph.all_arms(settings)}
    found = [a for a in arms.values() if target.replace("/", "-", 1) == a.key or target == a.student]
    if len(found) != 1:
        known = [*settings["studies"], *arms]
        what = f"{target!r} is an arm on several data sets" if found else f"no study or arm {target!r}"
        raise UserError(f"{what}{nearest(target, known)}; known: {', '.join(known)}")
    arm = found[0]
    chosen = _chosen(arm.key, arm.seeds, seeds)
    inputs = {graph.data_file(arm.dataset): None}
    for seed in chosen:
        of_seed = (settings, arm.dataset, arm.student, seed)
        inputs |= dict.fromkeys([*graph.teacher_weights(*of_seed), *graph.fit_file(*of_seed)])
    return Plan(
        name=arm.key,
        stages=[f"arm@{arm.key}"],
        targets=graph.seed_files(arm.directory, chosen, graph.RUN_FILES),
        rules=("train_student", "evaluate"),
        inputs=tuple(inputs),
    )


def _study_plan(settings: dict, name: str, studies: list[str], seeds: Sequence[int]) -> Plan:
    structure = dvc_arms.dvc_structure(settings | {"active": studies})["graph"]
    stages = [f"data@{d}" for d in structure["data"]] + [f"teacher@{t}" for t in structure["teachers"]]
    stages += [f"fit@{f}" for f in structure["fits"]] + [f"arm@{a}" for a in structure["arms"]]
    files = tuple(graph.local_files(settings, studies))
    if not seeds:
        stages += [f"study-{s}" for s in studies]
        return Plan(name, stages, graph.targets(settings, studies), inputs=files)
    values = dict(settings["studies"])
    for study in studies:
        values[study] = values[study] | {"seeds": _chosen(study, values[study]["seeds"], seeds)}
    wanted = graph.targets(settings | {"studies": values}, studies)
    return Plan(name, stages, [t for t in wanted if not t.startswith("results/")], inputs=files)


def _chosen(name: str, have: Sequence[int], wanted: Sequence[int]) -> list[int]:
    for seed in wanted:
        if seed not in have:
            raise UserError(f"--seeds {seed}: {name} has the seeds {', '.join(map(str, have))}")
    return sorted(set(wanted)) or list(have)


def _unavailable(plan: Plan, what: str, known: list[str]) -> int:
    if known:
        why = f"{what}: neither in the workspace as recorded nor in DVC's cache nor in a remote; {REMEDY}"
    else:
        why = f"dvc.lock records no {plan.stages[0]}; `attnprior run` makes and records it"
    print(f"verify {plan.name}: {MISSING}: {why}")
    return STATUS[MISSING]


def report(plan: Plan, folder: Path, recorded: Recorded) -> int:
    """Print a table of the jobs made in `folder` and one summarising line; return the exit status."""
    jobs: dict[str, Outcome] = {}
    records: dict[str, tuple[str, dict]] = {}  # job -> (path of its run.json, content)
    maker: dict[str, str] = {}
    for path in (t for t in plan.targets if t.endswith("run.json")):
        record = json.loads((folder / path).read_text(encoding="utf-8"))
        records[record["job"]] = (path, record)
        jobs[record["job"]] = Outcome(record["job"], IDENTICAL)
        maker |= dict.fromkeys(record["outputs"], record["job"])
    for path in (t for t in plan.targets if not t.endswith("run.json")):
        jobs[maker[path]].parts.append(compare(path, folder, recorded, jobs))
    for job in jobs.values():
        job.outcome = max((p.outcome for p in job.parts), key=RANK.index)
    width = max(map(len, jobs))
    for job in jobs.values():
        print(f"{job.name:{width}}  {job.outcome:{len(MISSING)}}  {_files(job.parts)}".rstrip())
        for part in job.parts:
            if part.outcome != IDENTICAL:
                print(f"  {part.name}: {part.outcome}{part.detail and f': {part.detail}'}")
    parts = [p for job in jobs.values() for p in job.parts]
    overall = max((p.outcome for p in parts), key=RANK.index)
    changed = {
        key: found
        for key, (path, record) in records.items()
        if (found := causes.changes(recorded.find(path), record)) is not None
    }
    for line in causes.summary(changed):
        print(f"not as recorded: {line}")
    _summarise(plan, overall, jobs, parts, changed, recorded)
    return STATUS[overall]


def compare(path: str, folder: Path, recorded: Recorded, jobs: dict[str, Outcome]) -> Outcome:
    """Compare one artifact made in `folder`; drawings follow the numbers in `jobs`, compared before."""
    digest = recorded.digest(path)
    made = folder / path
    if digest is not None and md5(made) == digest:
        return Outcome(path, IDENTICAL)
    reference = recorded.find(path)
    if reference is None:
        detail = "other bytes, and the recorded ones are not at hand" if digest else "its hash is not at hand"
        return Outcome(path, MISSING, f"{detail}; {REMEDY}")
    if path.endswith(".html") and closeness.same_page(made, reference):
        return Outcome(path, IDENTICAL, "its provenance aside")
    if closeness.is_drawn(path):
        numbers = [p.outcome for job in jobs.values() for p in job.parts if not closeness.is_drawn(p.name)]
        if set(numbers) & {CLOSE, DIFFERENT}:
            worst = DIFFERENT if DIFFERENT in numbers else CLOSE
            return Outcome(path, worst, f"shows numbers that are {worst}")
        return Outcome(path, DIFFERENT, "other bytes, though the numbers shown are identical")
    close, where = closeness.distance(made, reference)
    return Outcome(path, CLOSE if close else DIFFERENT, where)


def _files(parts: list[Outcome]) -> str:
    names = [Path(p.name).name for p in parts]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _summarise(plan, overall, jobs, parts, changed, recorded: Recorded) -> None:
    said = f"verify {plan.name}: {overall}"
    if overall == IDENTICAL:
        aside = "".join(f" ({p.name}: {p.detail})" for p in parts if p.detail)
        print(f"{said}: all {len(parts)} artifacts of {len(jobs)} jobs have the recorded bytes{aside}")
        return
    count = sum(p.outcome == IDENTICAL for p in parts)
    # What follows from a first difference is no other one, even if it is larger.
    sought = {MISSING} if overall == MISSING else {CLOSE, DIFFERENT}
    first, job = next((p, j) for j in jobs.values() for p in j.parts if p.outcome in sought)
    if overall == MISSING:
        lost = sum(p.outcome == MISSING for p in parts)
        print(
            f"{said} for {lost} of {len(parts)} artifacts, first {first.name};"
            f" {count} are identical; {REMEDY}"
        )
        return
    if overall == CLOSE:
        print(closeness.STATED)
    likely = causes.likely(first.name, job.name, changed, recorded)
    print(
        f"{said}: {count} of {len(parts)} artifacts identical; first difference: {first.name}"
        f" ({job.name}); likely cause: {likely}"
    )
