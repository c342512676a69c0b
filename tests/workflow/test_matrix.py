"""What every single change reruns: Snakemake, DVC and `attnprior run` agree, and it covers what is read."""

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attnprior.workflow.params import read_yaml
from tests.workflow import extra, mutations, readers
from tests.workflow import project as projects
from tests.workflow.project import ROOT, Project

RULES = {
    r for p in ROOT.glob("workflow/rules/*.smk") for r in re.findall(r"^rule (\w+):", p.read_text(), re.M)
}
LEAVES_SHIPPED = 220  # leaf keys of the shipped params.yaml, at least
MODULES_SHIPPED = 80
# Keys whose value selects among a single possibility, and what a recipe of pre-training must leave off.
FIXED = re.compile(
    r"datasets\.\w+\.source|models\.(model_i|vit|spare)\.(kind|attention)"
    r"|recipes\.mae\.(label_smoothing|drop_path|layer_decay|augment\.(mixup|cutmix))"
)
# What a drop takes out of the inputs of tables, figures and pages.
DROPPED = {
    "a seed": r"^(runs|teachers|fits)/.*_probe__tiny/.*seed1/",  # of the study in a file of its own
    "students": r"/(copy|copy_random_teacher|copy_other_image|vit_\w+)/",
    "a data set": r"runs/digits/",
}


def ask(project: Project, *args: str) -> list[dict]:
    """Return what the engines say about changes of `project`, asked in a process of its own."""
    path = os.pathsep.join([str(project.root / "src"), str(ROOT)])
    done = project.sh(
        *[sys.executable, "-m", "tests.workflow.matrix", *args],
        timeout=3000,
        PYTHONPATH=path,
        OMP_NUM_THREADS="1",
        ATTNPRIOR_COMMIT="unknown",  # no job runs that would note it, so git need not be asked each time
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def disagreements(found: list[dict], read: list[readers.Read]) -> list[str]:
    """Return a line for everything that the engines judge differently, or that is read and not made again."""
    lines = []
    for v in found:
        if v["kind"] == "fixed":
            continue
        of = {k: set(x) for k, x in v.items() if isinstance(x, list)}
        # A stage that has lost a seed is recorded with its shorter command; nothing of it is made again.
        lost = {stage for job, stage in found[0]["stages"].items() if job not in v["stages"]}
        idle = (of["command"] & lost) - of["own_stages"]
        for what, one, other in (
            ("Snakemake's own causes and DVC's changes", of["own_stages"], of["changed"] - idle),
            ("Snakemake's plan and what follows in DVC", of["planned_stages"] | idle, of["downstream"]),
            ("Snakemake's plan and attnprior's", of["planned"], of["run"]),
            ("Snakemake's own causes and attnprior's", of["own"], of["stale"]),
        ):
            if one != other:
                lines.append(
                    f"{v['kind']} {v['name']}: {what}: {sorted(one - other)} and {sorted(other - one)}"
                )
        place = f"params:{v['name']}" if v["kind"] == "key" else v["name"]
        reading = {r.job for r in read if place in r.read}
        if missed := (reading & set(v["stages"])) - of["planned"]:
            lines.append(f"{v['kind']} {v['name']}: read by {sorted(missed)}, which would not be made again")
        declaring = {r.job for r in read if place in r.declared}
        if v["kind"] in ("nothing", "text") or (
            not declaring and v["kind"] != "dropped" and v["name"] != "active"
        ):
            lines += [
                f"{v['kind']} {v['name']}: would make {k} again"
                for k in sorted(of["planned"] | of["written"])
            ]
        if v["kind"] == "dropped":
            lines += [
                f"dropped {v['name']}: {f} stays" for f in of["tabled"] if re.search(DROPPED[v["name"]], f)
            ]
    return lines


def report(found: list[dict], read: list[readers.Read]) -> str:
    """Return what was compared, and what is declared without being read."""
    of = {
        kind: [v for v in found if v["kind"] == kind]
        for kind in ("key", "module", "dropped", "text", "fixed")
    }
    judged = sum(len(v.get("stages", [])) for v in found)
    rerun = sum(len(v.get("planned", [])) for v in found)
    grouped = [v["group"] for v in found if "group" in v]
    excess = readers.excess_lines(read)
    return "\n".join(
        [
            f"{len(of['key'])} keys and {len(of['module'])} modules changed, {len(of['dropped'])} drops,"
            f" {len(of['text'])} changes of text or time alone: {judged} jobs judged, {rerun} made again",
            f"{len(grouped)} of these changes reach no job, and were judged in {len(set(grouped))} groups",
            *(f"no other value: {v['name']}" for v in of["fixed"]),
            f"{len(read)} jobs traced; {len(excess)} things declared, but not read:",
            *excess,
        ]
    )


def assert_traced(project: Project, read: list[readers.Read], rules: set[str]) -> None:
    """Check that every job, of all `rules`, was traced and read nothing that it does not declare."""
    assert {r.job.split("/")[0] for r in read} == rules
    assert len({r.job for r in read}) == len(read) == len(list(project.root.rglob("*run.json")))
    assert {r.job: r.undeclared for r in read if r.undeclared} == {}


def test_a_sample_of_changes_reruns_what_reads_it(finished, project, measured):
    read = readers.reads(finished, finished.traces)
    assert_traced(finished, read, RULES - {"against_paper"})  # of studies that name published values
    # The key changes which files of a folder are read, and nothing else that DVC could see.
    found = ask(
        project, *["--keys", "7", "--modules", "4", "--seed", "1", "--also", "studies.digits.teacher_seed"]
    )
    measured(report(found, read))
    assert disagreements(found, read) == []
    assert sum(v["kind"] in ("key", "fixed") for v in found) == 8
    assert sum(v["kind"] == "module" for v in found) == 4


@pytest.mark.faults
def test_every_key_and_every_module_reruns_what_reads_it(tmp_path, measured):
    made = projects.create(tmp_path / "made", projects.every_kind, extra.files)
    made.sh(sys.executable, "-m", "attnprior", "run", timeout=3000, **readers.tracing(made.traces))
    made.commit("Results")
    read = readers.reads(made, made.traces)
    assert_traced(made, read, RULES)
    copies = [made.copy(tmp_path / f"copy{i}") for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda i: ask(copies[i], "--part", str(i), "2"), range(2))
        found = [v for part in parts for v in part]
    measured(report(found, read))
    assert disagreements(found, read) == []
    keys = {v["name"] for v in found if v["kind"] in ("key", "fixed")}
    assert keys == set(mutations.leaves(mutations.read(made.root)))
    given = read_yaml(ROOT / "params.yaml")
    given["recipes"] = {k: v for k, v in given["recipes"].items() if k in made.params()["recipes"]}
    shipped = set(mutations.leaves(given))
    # The first has an entry here, the others no warm-up; recipes with one are among the extra files.
    assert shipped - keys == {
        "students.distil.overrides",
        "recipes.mae.warmup_lr",
        "recipes.student.warmup_lr",
    }
    assert any(k.endswith(".warmup_lr") for k in keys)
    assert len(shipped) >= LEAVES_SHIPPED
    assert all(FIXED.fullmatch(v["name"]) for v in found if v["kind"] == "fixed")
    modules = {v["name"] for v in found if v["kind"] == "module"}
    assert modules == {str(p.relative_to(ROOT)) for p in Path(ROOT, "src/attnprior").rglob("*.py")}
    assert len(modules) >= MODULES_SHIPPED
    assert {v["name"] for v in found if v["kind"] == "dropped"} == set(DROPPED)
    assert {v["name"] for v in found if v["kind"] == "text"} == {*mutations.TEXTS, "every file touched"}
    assert len(readers.excess_lines(read)) <= 0.02 * sum(len(r.declared) for r in read)
