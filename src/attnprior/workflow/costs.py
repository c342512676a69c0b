"""What a study takes before anything runs: per stage and in total; imports no torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from attnprior.workflow import graph
from attnprior.workflow.work import (
    METADATA,
    TRACKED,
    Work,
    evaluate_work,
    fetch_work,
    fit_work,
    model_of,
    student_work,
    study_work,
    teacher_work,
)


@dataclass(frozen=True)
class Job:
    """One job of a study; `key` as in `attnprior status`."""

    key: str
    work: Work
    after: tuple[str, ...]


def jobs_of(params: dict, study: str) -> list[Job]:
    """Return every job of a study, each after those it waits for."""
    arms = graph.study_arms(params, study)
    models = {a.dataset: model_of(params, params["students"][a.student]["model"]) for a in arms}
    found = [Job(f"fetch_dataset/{d}", fetch_work(params, d, m), ()) for d, m in models.items()]
    for (dataset, name), seeds in graph.teacher_seeds(params, [study]).items():
        work = teacher_work(params, dataset, name)
        found += [
            Job(f"pretrain_teacher/{dataset}/{name}/seed{k}", work, (f"fetch_dataset/{dataset}",))
            for k in seeds
        ]
    for (name,), seeds in graph.fit_seeds(params, [study]).items():
        found += [Job(f"fit_impulse/{name}/seed{k}", fit_work(params, name), ()) for k in seeds]
    evaluated = []
    for arm in arms:
        teacher, fit = graph.teacher_of(params, arm.student), graph.fit_of(params, arm.student)
        work = student_work(params, arm.dataset, arm.student)
        for seed in arm.seeds:
            k = graph.source_seed(params, arm.dataset, arm.student, seed, [study])
            after = [f"fetch_dataset/{arm.dataset}"]
            after += [f"pretrain_teacher/{arm.dataset}/{teacher}/seed{k}"] if teacher else []
            after += [f"fit_impulse/{fit}/seed{k}"] if fit else []
            run = f"{arm.dataset}/{arm.student}/seed{seed}"
            found.append(Job(f"train_student/{run}", work, tuple(after)))
            evaluated.append(Job(f"evaluate/{run}", evaluate_work(), (f"train_student/{run}",)))
    before = tuple(j.key for j in evaluated)
    last = []
    for rule in graph.study_rules(params, study):
        last.append(Job(f"{rule}/{study}", study_work(rule, len(arms), len(evaluated)), before))
        before = (last[-1].key,)
    return [*found, *evaluated, *last]


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
