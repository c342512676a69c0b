"""`attnprior doctor`: what of this machine and this checkout would hinder a run; it changes nothing."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict

from attnprior.errors import UserError, one_line
from attnprior.workflow import doctor_locks, doctor_machine, doctor_project, doctor_software, params
from attnprior.workflow.finding import OK, PROBLEM, WARNING, Finding, ok, problem, warning

Check = Callable[[], Iterable[Finding]]


def doctor(*, as_json: bool = False) -> int:
    """Print a line for every check, or all as JSON; return 1 if there is a problem, else 0."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        width = max(len(f.check) for f in findings)
        for f in findings:
            print(f"{f.level:8} {f.check:{width}}  {f.text}")
        counts = {level: sum(f.level == level for f in findings) for level in (PROBLEM, WARNING)}
        print(f"{counts[PROBLEM]} problems, {counts[WARNING]} warnings, {len(findings)} checks")
    return int(any(f.level == PROBLEM for f in findings))


def examine() -> list[Finding]:
    """Return what every check finds in the working directory."""
    torch = doctor_software.start_torch()  # it takes seconds to import, so it does while the rest is done
    try:
        settings: dict | None = params.load()
        found = [ok("params.yaml", "follows its schema")]
    except UserError as e:
        settings, found = None, [problem("params.yaml", str(e))]
    checks: list[tuple[str, Check]] = [
        ("python", doctor_software.python),
        ("packages", doctor_software.packages),
        ("yaml parser", doctor_software.yaml_parser),
        ("machine", lambda: doctor_machine.machine(settings) if settings else []),
        ("path", doctor_machine.path),
        ("file system", doctor_machine.file_system),
        ("slurm", doctor_machine.slurm),
        ("git", doctor_project.git),
        ("dvc", doctor_project.dvc),
        ("profiles", doctor_project.profiles),
        ("clock", doctor_project.clock),
        ("locks", doctor_locks.locks),
        ("checkpoints", doctor_project.checkpoints),
        ("jobs", lambda: doctor_project.jobs(settings) if settings else []),
        ("mlflow", doctor_software.mlflow_store),
        ("torch", lambda: doctor_software.torch_found(*torch, settings)),
    ]
    for name, check in checks:
        found += guarded(name, check)
    rank = {PROBLEM: 0, WARNING: 1, OK: 2}
    return sorted(found, key=lambda f: rank[f.level])


def guarded(name: str, check: Check) -> list[Finding]:
    """Return what a check finds; one that fails itself is a warning and does not end the others."""
    try:
        return list(check())
    except Exception as e:
        return [warning(name, f"could not be checked: {type(e).__name__}: {one_line(e)}")]
