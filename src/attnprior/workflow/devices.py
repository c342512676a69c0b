"""How long work takes: on the devices of `workflow/devices.yaml`, and on this machine from what ran here."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from attnprior import provenance
from attnprior.errors import UserError
from attnprior.workflow import graph, params, work
from attnprior.workflow.costs import Job
from attnprior.workflow.work import TORCH, Work

REGISTRY = "workflow/devices.yaml"
RECORDS = (
    "data/*.run.json",
    "teachers/*/*/seed*/run.json",
    "fits/*/seed*/run.json",
    "runs/*/*/seed*/*run.json",
    "results/*/*run.json",
)
PLAIN_START = 0.3  # seconds: Python and NumPy, without PyTorch
# Seconds that the engines add to a run, and to each of its jobs: Snakemake's turn between jobs, DVC, MLflow.
ENGINES = (6.0, 0.3)


@dataclass(frozen=True)
class Device:
    """An entry of the registry; what the keys mean stands there."""

    name: str
    peak_tflops: float
    utilisation: float
    block_ms: float
    startup_s: float
    other_s: float
    jobs: int


@dataclass(frozen=True)
class Machine:
    """This machine: `device` corrected by what jobs needed here, by rule."""

    name: str
    device: Device
    jobs: int  # at a time
    records: int  # finished jobs that it is taken from
    factors: dict[str, float] = field(default_factory=dict)  # measured / modelled seconds of computing
    startups: dict[str, float] = field(default_factory=dict)  # seconds
    memory: dict[str, float] = field(default_factory=dict)  # bytes beyond the formula


def registry(path=REGISTRY) -> dict[str, Device]:
    """Return the devices by name.

    Raises:
        UserError: the file is missing, or an entry has other keys or values than numbers above 0.
    """
    content = params.read_yaml(path)
    entries = content.get("devices") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or "cpu-core" not in entries:
        raise UserError(f"{path}: needs `devices:` with an entry cpu-core")
    keys = [f.name for f in fields(Device)][1:]
    for name, values in entries.items():
        if not isinstance(values, dict) or set(values) != set(keys):
            raise UserError(f"{path}: devices.{name} must have exactly the keys {', '.join(keys)}")
        for key, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise UserError(f"{path}: devices.{name}.{key} is {value!r}, must be a number above 0")
    return {name: Device(name, **values) for name, values in entries.items()}


def compute_seconds(job: Work, device: Device) -> float:
    """Return the estimated seconds of a job's own work, without its start."""
    if job.rule not in TORCH:
        return job.seconds
    rate = device.peak_tflops * 1e12 * device.utilisation
    training = (job.flops + job.passes) / rate + job.blocks * device.block_ms / 1000
    return job.seconds + training + (device.other_s if job.flops else 0.0)


def startup_seconds(job: Work, device: Device) -> float:
    return device.startup_s if job.rule in TORCH else PLAIN_START


def seconds_on(machine: Machine, job: Work) -> float:
    """Return the estimated seconds of a job on this machine, its start included."""
    start = machine.startups.get(job.rule, startup_seconds(job, machine.device))
    return start + compute_seconds(job, machine.device) * machine.factors.get(job.rule, 1.0)


def wall_seconds(jobs: list[Job], machine: Machine) -> float:
    """Return the estimated time from start to end of the jobs: they share the places, none begins early."""
    if not jobs:
        return 0.0
    ends: dict[str, float] = {}
    total = 0.0
    for job in jobs:
        seconds = seconds_on(machine, job.work)
        total += seconds
        ends[job.key] = seconds + max((ends.get(k, 0.0) for k in job.after), default=0.0)
    return max(total / machine.jobs, max(ends.values())) + ENGINES[0] + ENGINES[1] * len(jobs)


def named(device: Device) -> Machine:
    """Return a device of the registry as a machine of which nothing is measured."""
    return Machine(device.name, device, device.jobs, 0)


def this_machine(settings: dict, devices: dict[str, Device]) -> Machine:
    """Return this machine, corrected by the records of the jobs that ran here with the present threads."""
    compute = settings["compute"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    on_gpu = compute["device"] != "cpu"
    records = [r for r in read_records() if _ran_here(r, compute)]
    name = records[-1]["device"] if records else provenance.device_name("cpu") if not on_gpu else "cuda"
    base = devices["cpu-core"]
    if on_gpu:
        base = next((d for d in devices.values() if d.name in name), devices.get("A100", base))
    jobs = 1 if on_gpu else max(1, cores // compute["torch_threads"])
    measured: dict[str, float] = defaultdict(float)
    modelled: dict[str, float] = defaultdict(float)
    startups: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, float] = {}
    for record in records:
        rule, job = record["rule"], work_of(settings, record)
        if job is None or not job.known:
            continue
        measured[rule] += record["seconds"]["compute"]
        modelled[rule] += compute_seconds(job, base)
        startups[rule].append(record["seconds"]["startup"])
        memory[rule] = max(memory.get(rule, 0.0), record["max_rss_mb"] * 2**20 - job.memory)
    return Machine(
        f"this machine ({name}, {cores} core{'s' if cores > 1 else ''})",
        base,
        jobs,
        sum(map(len, startups.values())),
        {r: measured[r] / modelled[r] for r in measured if modelled[r] > 0},
        {r: sum(v) / len(v) for r, v in startups.items()},
        memory,
    )


def read_records(root=".") -> Iterator[dict]:
    """Yield the readable records of finished jobs, in the order of their paths."""
    for pattern in RECORDS:
        for path in sorted(Path(root).glob(pattern)):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                if {"rule", "wildcards", "params", "seconds", "device", "threads", "max_rss_mb"} <= set(
                    record
                ):
                    yield record
            except (OSError, ValueError, TypeError):
                continue


def _ran_here(record: dict, compute: dict) -> bool:
    """Return whether a job ran on the device and with the threads that the settings name."""
    device = record["device"]
    if record["rule"] not in TORCH:
        return True  # of one core wherever it ran
    here = (
        device.startswith("cuda") if compute["device"] != "cpu" else device == provenance.device_name("cpu")
    )
    return here and record["threads"] == compute["torch_threads"]


def work_of(settings: dict, record: dict) -> Work | None:
    """Return the work of a finished job by the settings it had; None where the present ones cannot tell."""
    try:
        then = _with(settings, json.loads(record["params"]))
        names = record["wildcards"]
        match record["rule"]:
            case "fetch_dataset":
                model = next(iter(then["models"]))
                return work.fetch_work(then, names["dataset"], work.any_model(then, model))
            case "pretrain_teacher":
                return work.teacher_work(then, names["dataset"], names["teacher"])
            case "fit_impulse":
                return work.fit_work(then, names["fit"])
            case "train_student":
                return work.student_work(then, names["dataset"], names["student"])
            case "evaluate":
                return work.evaluate_work()
            case rule:
                arms = graph.study_arms(then, names["study"])
                return work.study_work(rule, len(arms), sum(len(a.seeds) for a in arms))
    except (KeyError, TypeError, ValueError, AssertionError, UserError):
        return None


def _with(settings: dict, own: dict) -> dict:
    """Return `settings` with the values at the keys of a record (`section` or `section.name`) in their place.

    What an older record does not have, since there was no such key yet, is taken from the present entry.
    Other values are shared with `settings`: it is called for every record, and sections can be large.
    """
    then = dict(settings)
    for key, value in own.items():
        section, _, name = key.partition(".")
        known = then.get(section, {})
        if name:
            then[section] = {**known, name: {**known.get(name, {}), **value}}
        else:
            then[section] = {**known, **value}
    return then


def summary(jobs: Iterable[Job], planned: set[str], machines: Iterable[Machine]) -> list[dict]:
    """Return for each machine the estimated seconds of all jobs and of those that would run now."""
    jobs = list(jobs)
    to_run = [j for j in jobs if j.key in planned]
    return [
        {
            "device": m.name,
            "jobs_at_a_time": m.jobs,
            "from_records": m.records,
            "seconds": round(wall_seconds(jobs, m), 1),
            "seconds_to_run": round(wall_seconds(to_run, m), 1),
        }
        for m in machines
    ]
