"""`attnprior study show`: what a study compares and what it costs, before anything runs."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from attnprior.errors import one_line
from attnprior.workflow import costs, devices, graph, params, sync
from attnprior.workflow.engines import snakemake_graph
from attnprior.workflow.state import Hashes
from attnprior.workflow.studyfiles import file_of

MIB = 2**20
UNITS = ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))


def show_study(name: str, *, as_json: bool = False) -> int:
    """Print the arms of a study and what its jobs take, per stage and in total, or all of it as JSON.

    Raises:
        UserError: no such study, or the settings or the device registry are wrong.
    """
    settings = params.load(studies=[name])
    params.check_study(settings, name)
    known = devices.registry()
    try:
        jobs = costs.jobs_of(settings, name)
    except costs.UNKNOWN as e:
        reason = f"the estimate does not know an entry of it ({one_line(e)})"
        lines = [*about(settings, name), "", f"costs: not known, since {reason}"]
        print(json.dumps({"study": name, "notes": [reason]}) if as_json else "\n".join(lines))
        return 0
    planned = to_run(settings, name, jobs)
    here = devices.this_machine(settings, known)
    stages = costs.stages_of(jobs, planned, here.memory)
    times = devices.summary(jobs, planned, [here, *map(devices.named, known.values())])
    checkpoints = here.jobs * max(j.work.checkpoint for j in jobs)
    notes = unknown(jobs)
    if as_json:
        found = {
            "study": name,
            "stages": [asdict(s) for s in stages],
            "checkpoints": checkpoints,
            "times": times,
            "notes": notes,
        }
        print(json.dumps(found, indent=2))
        return 0
    print("\n".join(about(settings, name)), end="\n\n")
    print("\n".join(table(stages)), end="\n\n")
    print("\n".join(disk(stages[-1], checkpoints) + time_lines(times) + notes))
    return 0


def to_run(settings: dict, name: str, jobs: list[costs.Job]) -> set[str]:
    """Return the keys of the jobs of a study that `attnprior run` would run now."""
    with snakemake_graph(graph.targets(settings, [name])) as found:
        planned = {j.key for j in sync.reconcile(found, Hashes(), write=False).planned}
        current = {j.key for j in found.jobs} - planned
    return {j.key for j in jobs} - current


def about(settings: dict, name: str) -> list[str]:
    """Return what a study compares: title, data sets, seeds, panels and arms."""
    study = settings["studies"][name]
    seed = study["teacher_seed"]
    lines = [f"{name}: {study['title']}", f"settings: {file_of(settings, f'studies.{name}')}"]
    if "scaled" in study:
        lines.append(f"scaled: {', '.join(f'{k} {v}' for k, v in study['scaled'].items())}")
    if "paper" in study:
        lines.append(f"beside: {study['paper']['table']}")
        lines.append(f"differs from it: {study['paper']['differs'] or 'in nothing'}")
    lines.append(f"data sets: {', '.join(study['datasets'])}; seeds: {', '.join(map(str, study['seeds']))}")
    lines.append("teachers: " + ("one per seed" if seed is None else f"one, seed {seed}"))
    members = [s for p in study["panels"].values() for s in [*p["arms"], *p["controls"]]]
    width = max(map(len, members))
    for panel_name, panel in study["panels"].items():
        lines.append(f"panel {panel_name}: {panel['title']} (baseline {panel['baseline']})")
        for role in ("arms", "controls"):
            for student in panel[role]:
                values = settings["students"][student]
                sources = [*values["init"].values(), *values["transfer"].values()]
                labels = f"{values['labels']}{' permuted' if values['permute_labels'] else ''} labels"
                if values["freeze"] != "none":
                    sources.append(f"{values['freeze']} frozen")
                text = f"{labels}; {', '.join(map(_plain, sources))}"
                lines.append(f"  {role[:-1]:8} {student:{width}} {text}")
    return lines


def _plain(value: object) -> str:
    """Return a setting as `params.yaml` has it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_plain(v)}' for k, v in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(stages: list[costs.Stage]) -> list[str]:
    """Return the costs per stage and in total, a line each."""
    heads = ("stage", "jobs", "to run", "current", "training", "of it to run", "memory/job", "files")
    rows = [
        [
            s.rule,
            f"{s.jobs:,}",
            f"{s.to_run:,}",
            f"{s.jobs - s.to_run:,}",
            operations(s.flops),
            operations(s.flops_to_run),
            f"{s.memory / MIB:,.0f} MiB",
            size(s.files),
        ]
        for s in stages
    ]
    widths = [max(len(r[i]) for r in (heads, *rows)) for i in range(len(heads))]
    return [
        "  ".join([r[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(r[1:], widths[1:], strict=True))])
        for r in (list(heads), *rows)
    ]


def disk(total: costs.Stage, checkpoints: int) -> list[str]:
    """Return what a study takes on disk, in words."""
    whole = 2 * total.files + total.records
    return [
        f"disk: {size(whole)}: the files, once more in .dvc/cache (less where it links), and"
        f" {size(total.records)} of logs and records;",
        f"      while jobs run, up to {size(checkpoints)} of checkpoints",
    ]


def time_lines(times: list[dict]) -> list[str]:
    """Return the estimated time on each device, a line each."""
    here = times[0]["from_records"]
    lines = [
        "time, estimated from operations, number of steps and process starts; this machine "
        + (f"from {here:,} jobs that ran here:" if here else "as cpu-core, for no job has run here yet:")
    ]
    names = [f"{t['device']}, {t['jobs_at_a_time']} at a time" for t in times]
    width = max(map(len, names))
    lines.append(f"  {'device':{width}}  {'all jobs':>12}  {'to run now':>12}")
    for name, t in zip(names, times, strict=True):
        lines.append(f"  {name:{width}}  {span(t['seconds']):>12}  {span(t['seconds_to_run']):>12}")
    return [
        *lines,
        f"  ({devices.REGISTRY} describes the devices: peak x utilisation, not measured but cpu-core)",
    ]


def unknown(jobs: list[costs.Job]) -> list[str]:
    """Return a note for each data set whose number of images is not known yet."""
    fetches = [j.key.partition("/")[2] for j in jobs if j.work.rule == "fetch_dataset" and not j.work.known]
    return [
        f"note: the number of images of {d} is known once it is fetched (snakemake {graph.data_file(d)});"
        " its teachers and its validation are not in these sums"
        for d in fetches
    ]


def operations(flops: float) -> str:
    """Return operations with three digits and a unit, such as 7.51 TFLOP."""
    for unit, name in UNITS:
        if flops >= unit:
            return f"{flops / unit:.3g} {name}" if flops < 999.5 * unit else f"{flops / unit:.0f} {name}"
    return "-"


def size(count: float) -> str:
    """Return bytes with two or three digits and a unit, such as 50.6 MB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:.0f} {name}"
    return f"{count / 1e3:.0f} kB"


def span(seconds: float) -> str:
    """Return a time in the two largest units that are not zero, such as 1 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if seconds < 600:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"
