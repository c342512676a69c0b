"""The one module that calls private interfaces of Snakemake's graph and of DVC (pinned in pyproject.toml).

Snakemake has no public listing of jobs and none for its metadata; both are reached through the
workflow object behind `SnakemakeApi`. DVC is used through `dvc.repo.Repo`. Nothing is patched.
`tests/workflow/test_engines.py` holds every assumption made here.
"""

import contextlib
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from attnprior.errors import UserError, one_line, tell
from attnprior.workflow import lockfile, repair
from attnprior.workflow.studyfiles import located

T = TypeVar("T")
LOCAL = None  # the executor of Snakemake's arguments when jobs run here
LARGEST_CHECKSUM = 100 * 10**9  # bytes; as max-checksum-file-size in the default profile


@dataclass
class Job:
    """One job of Snakemake's graph."""

    rule: str
    wildcards: dict[str, str]
    inputs: list[str]
    outputs: list[str]
    run_json: str
    params: str  # the canonical JSON string of its settings
    logs: dict[str, str]
    upstream: list["Job"] = field(default_factory=list, repr=False)
    own_cause: bool = False  # Snakemake wants it for a reason other than upstream jobs
    recorded: bool = True  # Snakemake has metadata of all outputs
    handle: Any = field(default=None, repr=False)  # Snakemake's own object

    @property
    def key(self) -> str:
        """The name in events and messages, such as train_student/digits/impulse/seed0."""
        parts = [f"seed{v}" if k == "seed" else v for k, v in self.wildcards.items()]
        order = ["dataset", "teacher", "fit", "student", "study", "seed"]
        ranked = sorted(zip(self.wildcards, parts, strict=True), key=lambda kv: order.index(kv[0]))
        return "/".join([self.rule, *(p for _, p in ranked)])


class Graph:
    """Snakemake's jobs in topological order, with access to what it has recorded of them."""

    def __init__(self, workflow):
        self._workflow = workflow
        dag = workflow.dag
        by_handle: dict[Any, Job] = {}
        self.jobs: list[Job] = []
        for level in dag.toposorted():
            for handle in sorted(level, key=str):
                if not handle.output:
                    continue  # `rule all`
                job = self._job(dag, handle)
                job.upstream = [by_handle[h] for h in dag.dependencies[handle] if h in by_handle]
                by_handle[handle] = job
                self.jobs.append(job)

    def _job(self, dag, handle) -> Job:
        reason = dag.reason(handle)
        persistence = self._workflow.persistence
        own = bool(
            (reason.updated_input - reason.updated_input_run)
            or reason.missing_output
            or reason.nooutput
            or reason.is_provenance_triggered()
            or self._run(persistence.incomplete(handle))
        )
        outputs = [str(f) for f in handle.output]
        return Job(
            rule=handle.rule.name,
            wildcards=dict(handle.wildcards_dict),
            inputs=[str(f) for f in handle.input],
            outputs=outputs,
            run_json=str(handle.output["run"]),
            params=str(handle.params["json"]),
            logs={"text": str(handle.log["text"]), "events": str(handle.log["events"])},
            own_cause=own,
            recorded=persistence.has_metadata(handle),
            handle=handle,
        )

    def adopt(self, job: Job) -> None:
        """Let Snakemake record the existing outputs of `job` as made from its present inputs."""
        self._run(self._workflow.persistence.finished(job.handle))

    def distrust(self, job: Job) -> None:
        """Mark the outputs of `job` as incomplete, so that any Snakemake call makes them again."""
        self._workflow.persistence.started(job.handle)

    def command(self, job: Job) -> tuple[str, str | None]:
        """Return the shell command of `job`, without Snakemake's prefix, and its benchmark file."""
        benchmark = job.handle.benchmark
        return str(job.handle.shellcmd), str(benchmark) if benchmark else None

    def resources(self, job: Job, attempt: int = 1) -> dict[str, Any]:
        """Return the resources that an attempt of `job` asks for."""
        rule = job.handle.rule
        return dict(rule.expand_resources(job.handle.wildcards_dict, job.handle.input, attempt))

    def _run(self, coroutine):
        return self._workflow.async_run(coroutine)


@contextlib.contextmanager
def snakemake_graph(
    targets: Iterable[str] = (), rules: Iterable[str] = (), options: Any = None
) -> Iterator[Graph]:
    """Yield the graph of the working directory's Snakefile, as a dry run would build it.

    `targets` are files or rules (the default target if none); with `rules`, only those are judged.
    `options` (see `scheduler.options_of`) decide over the resources of jobs. Damaged records of Snakemake
    are deleted: they would end in a traceback.

    Raises:
        UserError: the Snakefile or the settings are wrong, in one line.
    """
    with contextlib.ExitStack() as stack:
        try:
            graph = stack.enter_context(_snakemake_graph(targets, rules, options))
        except UserError:
            if not repair.remove_unreadable_records("metadata", "incomplete"):
                raise
            graph = stack.enter_context(_snakemake_graph(targets, rules, options))
        yield graph


@contextlib.contextmanager
def _snakemake_graph(targets: Iterable[str], rules: Iterable[str], options: Any) -> Iterator[Graph]:
    from snakemake.api import SnakemakeApi
    from snakemake.exceptions import WorkflowError
    from snakemake.settings.types import (
        DAGSettings,
        ExecutionSettings,
        OutputSettings,
        Quietness,
        ResourceSettings,
        StorageSettings,
    )

    output = OutputSettings(quiet={Quietness.ALL}, dryrun=True)
    given: dict[str, Any] = (
        {"cores": 1}
        if options is None
        else {
            "cores": options.cores,
            "max_threads": options.max_threads,
            "overwrite_threads": options.set_threads,
            "nodes": options.jobs if options.executor != LOCAL else None,
            "resources": options.resources,
            "overwrite_resources": options.set_resources,
            "default_resources": options.default_resources,
        }
    )
    with contextlib.redirect_stderr(io.StringIO()) as said, SnakemakeApi(output) as api:
        try:
            dag = api.workflow(
                resource_settings=ResourceSettings(**given),
                storage_settings=StorageSettings(),
                snakefile=Path("Snakefile"),
            ).dag(
                DAGSettings(
                    targets=frozenset(targets),
                    allowed_rules=frozenset(rules),
                    max_checksum_file_size=LARGEST_CHECKSUM,
                )
            )
            with contextlib.redirect_stdout(io.StringIO()):
                dag.summary()  # the cheapest call that builds the graph and judges every job
            workflow = dag.workflow_api._workflow
            workflow.execution_settings = ExecutionSettings()  # `adopt` asks it whether to keep metadata
            graph = Graph(workflow)
        except WorkflowError as e:
            # What an input function of the rules says stands before Snakemake's account of where.
            own = re.search(r"UserError: (.*?) Wildcards:", one_line(e))
            raise UserError(own[1] if own else one_line(e)) from e
        except Exception as e:
            if said.getvalue():
                logging.getLogger("attnprior").debug(said.getvalue())
            raise UserError(f"Snakefile: {one_line(e)} (see `snakemake -n`)") from e
        yield graph


class Stages:
    """The stages of `dvc.yaml`, with what DVC recorded of them; read when they are asked for.

    Its methods raise UserError if `dvc.yaml` or `dvc.lock` is broken.
    """

    def __init__(self) -> None:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        logging.getLogger("dvc").setLevel(logging.ERROR)
        logging.getLogger("dvc.progress").setLevel(logging.CRITICAL)  # no bars of its own on a terminal
        try:
            self._repo = Repo()
        except DvcException as e:
            raise UserError(f"dvc: {one_line(e)}") from e

    def __enter__(self) -> "Stages":
        return self

    def __exit__(self, *_) -> None:
        self._repo.close()

    def _stages(self) -> dict[str, Any]:
        from dvc.exceptions import DvcException

        try:
            return {s.addressing: s for s in self._repo.index.stages}
        except DvcException as e:
            raise UserError(f"dvc.yaml: {one_line(e)}") from e

    @property
    def names(self) -> list[str]:
        """The stages, in the order of `dvc.yaml`."""
        return list(self._stages())

    def outs(self) -> dict[str, list[str]]:
        """Return {stage: output files and directories}, relative to the working directory."""
        return {n: [os.path.relpath(o.fs_path) for o in s.outs] for n, s in self._stages().items()}

    def deps(self) -> dict[str, list[str]]:
        """Return {stage: input files and directories}."""
        return {
            n: [os.path.relpath(d.fs_path) for d in s.deps if not hasattr(d, "params")]
            for n, s in self._stages().items()
        }

    def params(self) -> dict[str, list[str]]:
        """Return {stage: settings it depends on} as dotted keys, with file where that is not params.yaml."""
        return {
            n: sorted(
                {
                    located(os.path.relpath(d.fs_path), k)
                    for d in s.deps
                    if hasattr(d, "params")
                    for k in d.params
                }
            )
            for n, s in self._stages().items()
        }

    def changed(self, patience: float = 0) -> dict[str, Any]:
        """Return {stage: what differs from dvc.lock} by content.

        While another DVC command holds a lock, it waits for at most `patience` seconds.

        Raises:
            UserError: DVC cannot tell, for example since another DVC command still holds a lock.
        """
        from dvc.exceptions import DvcException

        def status() -> dict[str, Any]:
            self._repo._reset()
            return self._repo.status()

        try:
            return _when_free(status, patience)
        except DvcException as e:
            raise UserError(f"dvc status: {one_line(e)}; wait for the other command or stop it") from e

    def commit(self, names: Iterable[str], patience: float = 0) -> None:
        """Write the present state of the stages to dvc.lock and their outputs to the cache.

        `dvc commit` takes one stage or all. It reads dvc.yaml, params.yaml and dvc.lock anew for each,
        and writes dvc.lock for each; here both happen once for all `names`, as where it takes all, and
        of dvc.lock their part is written. It waits as `changed` does.

        Raises:
            UserError: DVC refuses; dvc.lock is as it was.
        """
        from dvc.exceptions import DvcException
        from dvc.lock import LockError
        from dvc.repo import lock_repo

        name = ""

        def write() -> None:
            nonlocal name
            with lock_repo(self._repo), repair.lock_kept():
                stages, done = self._stages(), []
                for name in names:
                    stages[name].save()
                    stages[name].commit()
                    done.append(stages[name])
                if done:
                    lockfile.write(done)

        try:
            _when_free(write, patience)
        except LockError as e:
            raise UserError(f"dvc commit: {one_line(e)}; wait for the other command or stop it") from e
        except (DvcException, OSError) as e:
            raise UserError(f"dvc commit {name}: {one_line(e)}") from e


def _when_free(act: Callable[[], T], patience: float) -> T:
    """Return what `act` does with DVC, tried for `patience` seconds while another command has a lock."""
    from dvc.lock import LockError

    begin, said = time.monotonic(), False
    while True:
        try:
            return act()
        except LockError:
            if time.monotonic() - begin >= patience:
                raise
        if not said:
            tell("attnprior: waiting until another DVC command ends")
            said = True
        time.sleep(0.5)
