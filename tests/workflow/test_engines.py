"""What the private interfaces of Snakemake and DVC are assumed to do, on a minimal workflow."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attnprior.errors import UserError
from attnprior.workflow import engines
from attnprior.workflow.scheduler import snakemake_options
from tests.workflow.project import environment

SNAKEFILE = """
rule all:
    default_target: True
    input: "b/seed0.txt", "b/seed0.run.json"
rule a:
    input: "source.txt"
    output: "a.txt", run="a.run.json"
    log: text="logs/a.log", events="logs/a.jsonl"
    params: json='{"x":1}'
    shell: "cp {input} {output[0]}; echo {{}} > {output.run}"
rule b:
    input: "a.txt"
    output: "b/seed{seed}.txt", run="b/seed{seed}.run.json"
    log: text="logs/b{seed}.log", events="logs/b{seed}.jsonl"
    params: json='{"y":1}'
    shell: "cat {input} {input} > {output[0]}; echo {{}} > {output.run}"
"""


def snakemake(*args, ok=True):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", *args],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ok or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "source.txt").write_text("source\n")
    return tmp_path


def test_graph_lists_jobs_in_order_with_their_files_and_settings(workflow):
    with engines.snakemake_graph() as graph:
        first, second = graph.jobs
    assert (first.rule, first.inputs, first.outputs) == ("a", ["source.txt"], ["a.txt", "a.run.json"])
    assert (second.wildcards, second.params) == ({"seed": "0"}, '{"y":1}')
    assert second.key == "b/seed0"
    assert second.upstream == [first]
    assert first.logs == {"text": "logs/a.log", "events": "logs/a.jsonl"}
    assert first.own_cause and not first.recorded


def test_the_command_and_benchmark_file_of_a_job_are_those_of_its_rule(workflow):
    with_benchmark = SNAKEFILE.replace("rule b:", 'rule b:\n    benchmark: "logs/b{seed}.tsv"')
    (workflow / "Snakefile").write_text(with_benchmark)
    with engines.snakemake_graph() as graph:
        first, second = (graph.command(job) for job in graph.jobs)
    assert first == ("cp source.txt a.txt; echo {} > a.run.json", None)
    assert second == ("cat a.txt a.txt > b/seed0.txt; echo {} > b/seed0.run.json", "logs/b0.tsv")


def test_finished_jobs_are_recorded_and_have_no_cause(workflow):
    snakemake()
    with engines.snakemake_graph() as graph:
        assert [(j.own_cause, j.recorded) for j in graph.jobs] == [(False, True)] * 2


def test_adopted_files_are_not_made_again_without_any_metadata(workflow):
    snakemake()
    subprocess.run(["rm", "-rf", ".snakemake"], check=True)
    (workflow / "a.txt").touch()  # newer than b, as after a pull
    with engines.snakemake_graph() as graph:
        assert not any(j.recorded for j in graph.jobs)
        assert graph.jobs[1].own_cause
        for job in graph.jobs:
            graph.adopt(job)
    assert "Nothing to be done" in snakemake("-n", "--max-checksum-file-size", "100GB")
    (workflow / "a.txt").write_text("changed\n")
    assert "Nothing to be done" not in snakemake("-n", "--max-checksum-file-size", "100GB")


def test_distrusted_files_are_made_again_and_stay_until_then(workflow):
    snakemake()
    with engines.snakemake_graph() as graph:
        graph.distrust(graph.jobs[1])
    assert (workflow / "b/seed0.txt").exists()
    with engines.snakemake_graph() as graph:
        assert [j.own_cause for j in graph.jobs] == [False, True]
    said = snakemake("--rerun-incomplete")
    assert "rule b" in said
    assert "rule a:" not in said
    with engines.snakemake_graph() as graph:
        assert [j.own_cause for j in graph.jobs] == [False, False]


def test_adopting_clears_distrust(workflow):
    snakemake()
    with engines.snakemake_graph() as graph:
        graph.distrust(graph.jobs[1])
        graph.adopt(graph.jobs[1])
    assert "Nothing to be done" in snakemake("-n")


def test_resources_follow_from_the_threads_that_a_job_gets(workflow):
    text = SNAKEFILE.replace(
        "    log: text",
        "    threads: 4\n    resources: mem_mb=lambda w, threads: 100 * threads\n    log: text",
    )
    (workflow / "Snakefile").write_text(text)
    for argv, expected in (
        (["--cores", "2"], [200, 200]),
        (["--cores", "8", "--set-threads", "b=6"], [400, 600]),
        (["--cores", "8", "--max-threads", "3", "--set-threads", "b=6"], [300, 300]),
        (["--jobs", "5", "--executor", "dryrun"], [400, 400]),  # --cores is not given: no limit
    ):
        with engines.snakemake_graph(options=snakemake_options(argv)) as graph:
            assert [graph.resources(job)["mem_mb"] for job in graph.jobs] == expected, argv


def test_a_broken_snakefile_is_one_line(workflow):
    (workflow / "Snakefile").write_text("rule a:\n    input: 'x'\n    output: 'y'\n")
    with pytest.raises(UserError) as caught, engines.snakemake_graph():
        pass
    assert "\n" not in str(caught.value)
    assert "x" in str(caught.value)


@pytest.fixture
def stages(workflow):
    def run(*args):
        subprocess.run(args, check=True, env=environment(), capture_output=True)

    run("git", "init", "-q")
    run(sys.executable, "-m", "dvc", "init", "-q")
    (workflow / "params.yaml").write_text("p: {q: 1}\n")
    (workflow / "dvc.yaml").write_text(
        "stages:\n"
        "  one: {cmd: 'false', deps: [source.txt], params: [p.q], outs: [a.txt]}\n"
        "  two: {cmd: 'false', deps: [a.txt], outs: [{b: {persist: true}}]}\n"
    )
    (workflow / "a.txt").write_text("a")
    (workflow / "b").mkdir()
    (workflow / "b/x.txt").write_text("x")
    return workflow


def test_dvc_stages_are_listed_with_what_they_declare(stages):
    with engines.Stages() as found:
        assert found.names == ["one", "two"]
        assert found.outs() == {"one": ["a.txt"], "two": ["b"]}
        assert found.deps() == {"one": ["source.txt"], "two": ["a.txt"]}
        assert found.params() == {"one": ["p.q"], "two": []}


def test_committed_stages_are_unchanged_until_content_changes(stages):
    with engines.Stages() as found:
        assert set(found.changed()) == {"one", "two"}
        found.commit(["one"])
        assert set(found.changed()) == {"two"}
        found.commit(["two"])
        assert found.changed() == {}
        (stages / "params.yaml").write_text("p: {q: 2}\n")
        assert set(found.changed()) == {"one"}
        (stages / "b/y.txt").write_text("y")
        assert set(found.changed()) == {"one", "two"}
    seen = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"], env=environment(), capture_output=True, check=True
    )
    assert set(json.loads(seen.stdout)) == {"one", "two"}


def test_copies_that_are_missing_in_the_cache_are_written_again_by_a_commit(stages):
    with engines.Stages() as found:
        found.commit(["one", "two"])
        copies = {p: p.read_bytes() for p in (stages / ".dvc/cache/files").rglob("*") if p.is_file()}
        assert len(copies) == 3  # a.txt, b/x.txt, the list of b
        for path in copies:
            path.unlink()
        found.commit(["one", "two"])
        assert {p: p.read_bytes() for p in copies} == copies
        assert found.changed() == {}


OTHER_COMMAND = """
import sys
from dvc.repo import Repo, lock_repo
repo = Repo()
with lock_repo(repo):
    print("held", flush=True)
    sys.stdin.readline()
    repo.index.stages[1].save()
    repo.index.stages[1].dump()
    sys.stdin.read()
"""


@pytest.fixture
def other_command(stages):
    """Return a DVC command that holds its lock; it records stage "two" at a line, and ends with its input."""
    command = [sys.executable, "-c", OTHER_COMMAND]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_another_dvc_command_is_waited_for_and_what_it_records_stays(other_command, capsys):
    threading.Timer(5, lambda: other_command.communicate("\n")).start()
    with engines.Stages() as found:
        found.commit(["one"], patience=60)
        assert capsys.readouterr().err == "attnprior: waiting until another DVC command ends\n"
        assert "one" not in found.changed() and "two" in Path("dvc.lock").read_text()


def test_a_lock_that_stays_is_one_line_and_what_another_command_records_stays(other_command):
    with engines.Stages() as found:
        for ask in (found.changed, lambda: found.commit(["one"])):
            with pytest.raises(UserError, match="^dvc [a-z]*: Unable to acquire lock.*; wait for the other"):
                ask()
        threading.Timer(1, lambda: (other_command.stdin.write("\n"), other_command.stdin.flush())).start()
        with pytest.raises(UserError, match="Unable to acquire lock"):
            found.commit(["one"])  # the other one records meanwhile
    other_command.communicate()
    assert "two" in Path("dvc.lock").read_text()


def test_a_broken_dvc_file_is_one_line(stages):
    (stages / "dvc.yaml").write_text("stages: [\n")
    with engines.Stages() as found:
        for ask in (lambda: found.names, found.outs, found.changed, lambda: found.commit(["one"])):
            with pytest.raises(UserError, match=r"dvc\.yaml") as caught:
                ask()
    assert "\n" not in str(caught.value)
