"""What a study takes before anything runs: per stage and in total; imports no torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from attnprior.errors import UserError
from attnprior.workflow import graph
from attnprior.workflow.work import (
    METADATA,
    TRACKED,
    Work,
    any_model,
    evaluate_work,
    fetch_work,
    fit_work,
    student_work,
    study_work,
    teacher_work,
)

# What `jobs_of` raises for entries that were not checked, so that it cannot estimate them.
UNKNOWN = (UserError, AttributeError, KeyError, TypeError, ValueError, AssertionError)


@dataclass(frozen=True)
class Job:
    """One job of a study; `key` as in `attnprior status`."""

    key: str
    work: Work
    after: tuple[str, ...]


def jobs_of(params: dict, study: str) -> list[Job]:
    """Return every job of a study, each after those it waits for."""
    arms, shown = graph.all_arms(params, [study]), graph.study_arms(params, study)
    teachers = graph.teacher_seeds(params, [study])
    models = {d: params["teachers"][t]["model"] for d, t in teachers}
    models |= {a.dataset: params["students"][a.student]["model"] for a in arms}
    found = [
        Job(f"fetch_dataset/{d}", fetch_work(params, d, any_model(params, models[d])), ())
        for d in graph.datasets_of(params, [study])
    ]
    for (dataset, name), seeds in teachers.items():
        work, student = teacher_work(params, dataset, name), params["teachers"][name].get("student")
        for k in seeds:
            after = [f"fetch_dataset/{dataset}"]
            after += [f"train_student/{dataset}/{student}/seed{k}"] if student else []
            found.append(Job(f"pretrain_teacher/{dataset}/{name}/seed{k}", work, tuple(after)))
    for (name,), seeds in graph.fit_seeds(params, [study]).items():
        found += [Job(f"fit_impulse/{name}/seed{k}", fit_work(params, name), ()) for k in seeds]
    evaluated = []
    for arm in arms:
        fit, work = graph.fit_of(params, arm.student), student_work(params, arm.dataset, arm.student)
        behind = [(graph.made_on(params, t, arm.dataset), t) for t in graph.teachers_of(params, arm.student)]
        for seed in arm.seeds:
            k = graph.source_seed(params, arm.dataset, arm.student, seed, [study])
            after = [f"fetch_dataset/{arm.dataset}"]
            after += [f"pretrain_teacher/{dataset}/{teacher}/seed{k}" for dataset, teacher in behind]
            after += [f"fit_impulse/{fit}/seed{k}"] if fit else []
            run = f"{arm.dataset}/{arm.student}/seed{seed}"
            found.append(Job(f"train_student/{run}", work, tuple(after)))
            evaluated.append(Job(f"evaluate/{run}", evaluate_work(), (f"train_student/{run}",)))
    results = {f"evaluate/{a.dataset}/{a.student}/seed{k}" for a in shown for k in a.seeds}
    before = tuple(j.key for j in evaluated if j.key in results)
    last = []
    for rule in graph.study_rules(params, study):
        last.append(Job(f"{rule}/{study}", study_work(rule, len(shown), len(results)), before))
        before = (last[-1].key,)
    return [*_in_order(found), *evaluated, *last]


def _in_order(jobs: list[Job]) -> list[Job]:
    """Return jobs after those that they wait for, as far as these are in the list; else in their order."""
    by_key, found = {j.key: j for j in jobs}, dict[str, Job]()

    def add(job: Job) -> None:
        for key in job.after:
            if key in by_key and key not in found:
                add(by_key[key])
        found[job.key] = job

    for job in jobs:
        add(job)
    return list(found.values())


@dataclass(frozen=True)
class Stage:
    """The jobs of one rule together, or of all; sizes in bytes, memory of the largest job."""

    rule: str
    jobs: int
    to_run: int
    flops: float
    flops_to_run: float
    memory: float
    files: int  # what DVC versions, so once more in its cache
    records: int  # logs, Snakemake's metadata, MLflow's store


def stages_of(jobs: Iterable[Job], planned: set[str], memory: dict[str, float]) -> list[Stage]:
    """Return the jobs by rule, in the order of the pipeline, then the total.

    `planned` holds the keys of the jobs that would run now, `memory` the bytes by rule that jobs here needed
    beyond the formula.
    """
    jobs = list(jobs)
    rules = list(dict.fromkeys(j.work.rule for j in jobs))
    stages = [_stage(rule, [j for j in jobs if j.work.rule == rule], planned, memory) for rule in rules]
    return [*stages, _stage("total", jobs, planned, memory)]


def _stage(name: str, jobs: list[Job], planned: set[str], memory: dict[str, float]) -> Stage:
    to_run = [j for j in jobs if j.key in planned]
    return Stage(
        rule=name,
        jobs=len(jobs),
        to_run=len(to_run),
        flops=sum(j.work.flops for j in jobs),
        flops_to_run=sum(j.work.flops for j in to_run),
        memory=max(j.work.memory + memory.get(j.work.rule, 0.0) for j in jobs),
        files=sum(j.work.files for j in jobs),
        records=sum(j.work.logs + METADATA * j.work.outputs + TRACKED for j in jobs),
    )
