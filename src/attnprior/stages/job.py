"""What every stage shares: parameters, threads, events, run.json and errors.

A stage module declares a `Stage` and calls `run_stage(STAGE, work, argv)`. `work` gets a `Job`,
writes the outputs and returns the final metrics. Importing this module imports no heavy package.
"""

import argparse
import os
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from attnprior import provenance
from attnprior.config import Compute, build
from attnprior.errors import BusyError, UserError, one_line, tell
from attnprior.events import EventLog
from attnprior.files import digest, sealed, sha256, write_json
from attnprior.ranks import leads, rank, size, wanted, without_sharing
from attnprior.source import code_files, code_path
from attnprior.stages.arguments import Stage, parse_params, parser
from attnprior.stages.device import import_torch
from attnprior.stages.launch import launch
from attnprior.train import stopping

T = TypeVar("T")
C = TypeVar("C", bound="Resumable")
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when NumPy and torch load


class Resumable(Protocol):
    """What `Job.resume` reads of a checkpoint."""

    job_id: str
    attempts: int
    state: dict | None

    def __init__(self, folder: str, key: str, job_id: str, say: Callable[[str], None]) -> None: ...

    @classmethod
    def follower(cls, folder: str) -> Any: ...

    @property
    def epoch(self) -> int: ...


class Job:
    """One run of a stage.

    Attributes: `args` (parsed), `wildcards`, `params` (dotted key -> value), `inputs` and `code` (path
    -> SHA-256), `outputs` (paths; `work` may append), `compute`; set by `trained`: `images_per_second`; by
    `work`, for who watches, `total` (epochs, or steps, that the job takes) and `images` (an epoch's).
    """

    def __init__(self, stage: Stage, args: argparse.Namespace) -> None:
        self.stage, self.args = stage, args
        self.wildcards = {w: getattr(args, w) for w in stage.wildcards}
        self.name = "/".join(
            [stage.rule, *(f"seed{v}" if k == "seed" else v for k, v in self.wildcards.items())]
        )
        self.params = parse_params(args.params)
        self.compute = build(
            Compute, self.params.get("compute", {"device": "cpu", "torch_threads": 1}), "compute"
        )
        self.outputs: list[str] = [getattr(args, o) for o in stage.outputs]
        self.images_per_second: float | None = None
        self.total: int | None = None
        self.images: int | None = None
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.startup, self._begin_time = provenance.process_age(), time.perf_counter()
        self.job_id, self.attempt, self.begun = uuid.uuid4().hex, 1, False
        self.events = EventLog(args.events if leads() else os.devnull)
        self.inputs: dict[str, str] = {}
        self.code: dict[str, str] = {}

    def prepare(self) -> None:
        """Check the threads and hash the inputs, before any heavy import.

        Raises:
            UserError: too few threads for the parameters, a wrong time limit, other processes than the
                recipe has, or an input cannot be read.
        """
        threads = self.compute.torch_threads
        if self.args.threads < threads:
            raise UserError(
                f"--threads {self.args.threads}: compute.torch_threads is {threads}, and fewer threads change"
                f" results; grant {threads} or lower compute.torch_threads"
            )
        if self.stage.shared and size() != wanted(self.params):
            raise UserError(
                f"WORLD_SIZE {size()}: the recipe has processes {wanted(self.params)}; start the stage"
                " without torchrun, it starts them itself"
            )
        if self.stage.checkpoint:
            stopping.deadline()  # a wrong limit is told before anything is computed
        os.environ.update({name: str(threads) for name in POOLS})
        for name in self.stage.inputs:
            value = getattr(self.args, name.rstrip("?*"))
            for path in value if isinstance(value, list) else [value] if value else []:
                self.inputs[path] = sha256(path)
        self.code = {name: sha256(code_path(name)) for name in code_files(self.stage.rule)}

    def settings(self, cls: type[T], registry: str, name: str) -> T:
        """Return the entry `registry.name` of the parameters as a dataclass.

        Raises:
            UserError: it is absent, or has a missing or unknown key.
        """
        key = f"{registry}.{name}"
        return build(cls, self.section(key), key)

    def section(self, key: str) -> dict[str, Any]:
        """Return the parameters under the dotted `key`.

        Raises:
            UserError: they were not given.
        """
        if not isinstance(self.params.get(key), dict):
            raise UserError(f"--params: no {key}; the rule must hand over every entry that its stage uses")
        return self.params[key]

    def start_torch(self):
        """Import torch with the parameters' threads and return the `torch.device` to use.

        Raises:
            UserError: the device is not there.
        """
        before = time.perf_counter()
        device = import_torch(self.compute.torch_threads, self.compute.device)
        took = time.perf_counter() - before
        self.startup, self._begin_time = self.startup + took, self._begin_time + took
        return device

    def resume(self, checkpoint_type: type[C]) -> C:
        """Open the job's checkpoint (a `Checkpoint`), which holds the state of a killed attempt if any.

        States of other parameters, inputs, code or versions are not used. Of several processes the first
        has it.

        Raises:
            BusyError: another process trains this job.
        """
        if not leads():
            return checkpoint_type.follower(self.args.checkpoint)
        # Other processes, or sharded ones, may go on with a state: only the order of sums differs.
        params = {k: without_sharing(v) for k, v in self.params.items()}
        key = digest([self.name, params, self.inputs, self.code, provenance.versions()])
        checkpoint = checkpoint_type(self.args.checkpoint, key, self.job_id, self.say)
        self.job_id, self.attempt = checkpoint.job_id, checkpoint.attempts
        rows = (checkpoint.state or {}).get("rows", [])
        self.begin(checkpoint.epoch, resume=checkpoint.state is not None, rows=rows)
        return checkpoint

    def begin(self, resumed_epoch: int = 0, *, resume: bool = False, rows: Sequence[dict] = ()) -> None:
        """Write the `start` event (once), and the history `rows` of earlier attempts where they are lost."""
        if self.begun:
            return
        self.begun = True
        self.events.start(
            resume=resume,
            rows=[_step_of(row) for row in rows],
            job=self.name,
            job_id=self.job_id,
            attempt=self.attempt,
            resumed_epoch=resumed_epoch,
            total=self.total,
            images=self.images,
            rule=self.stage.rule,
            wildcards=self.wildcards,
            params=self.params,
            params_digest=digest(self.params),
            inputs=self.inputs,
            commit=provenance.commit(),
            invocation=provenance.invocation(),
            device=provenance.device_name(self.compute.device if "torch" in sys.modules else "cpu"),
            processes=size(),
            versions=provenance.versions(),
            platform=provenance.platform(),
        )

    def row(self, row: dict) -> None:
        """Report a history row: an event, and a line in the text log."""
        step, values = _step_of(row)
        self.events.metrics(step, values)
        at = "epoch" if "epoch" in row else "step"
        self.say(f"{at} {step}: " + ", ".join(f"{k} {v:.6g}" for k, v in values.items()))

    def trained(self, images: int, since: float) -> None:
        """Note the speed of a training that saw so many images since `since` (`time.perf_counter`)."""
        self.images_per_second = round(images / (time.perf_counter() - since), 1)

    def say(self, text: str) -> None:
        """Write a line to the text log."""
        if leads():
            print(text, flush=True)

    def finish(self, values: dict) -> None:
        """Write run.json, the last of the outputs, and the `end` event."""
        total = time.perf_counter() - self._begin_time
        record = {
            "job": self.name,
            "rule": self.stage.rule,
            "wildcards": self.wildcards,
            "params": self.args.params,
            "inputs": self.inputs | self.code,
            "outputs": {path: sha256(path) for path in self.outputs},
            "commit": provenance.commit(),
            "invocation": provenance.invocation(),
            "versions": provenance.versions(),
            "platform": provenance.platform(),
            "device": provenance.device_name(self.compute.device),
            "threads": self.compute.torch_threads,
            "processes": size(),
            "started": self.started,
            "attempts": self.attempt,
            "seconds": {
                "startup": round(self.startup, 3),
                "compute": round(total, 3),
                "total": round(self.startup + total, 3),
                "cpu": round(time.process_time(), 3),
            },
            "images_per_second": self.images_per_second,
            "max_rss_mb": provenance.max_rss_mb(),
        }
        write_json(self.args.run_json, sealed(record))
        self.events.end("finished", values, [*self.outputs, self.args.run_json])

    def fail(self, error: str) -> None:
        """Write the `end` event of a failed job; what an earlier attempt logged stays."""
        self.begin(resume=True)
        self.events.end("failed", {}, [], error)

    def stop(self, why: str) -> None:
        """Write the `end` event of an attempt that saved its state; the next goes on from there."""
        self.events.end("stopped", {}, [], why)


def _step_of(row: dict) -> tuple[int, dict]:
    """Return the number of a history row, its epoch if it has one, and its values."""
    step = row["epoch"] if "epoch" in row else row["step"]
    return step, {k: v for k, v in row.items() if k not in ("epoch", "step")}


def run_stage(stage: Stage, work: Callable[[Job], dict], argv: list[str] | None) -> int:
    """Run one job and return its exit status: 0, or 1 after a line "error: ..." on stderr.

    A `UserError` prints that line only; any other error prints its traceback first. SIGTERM, SIGUSR1 and
    SIGINT end the job with status 143, 138 and 130 after its `end` event. A training saves its state
    first, says in a line where it stopped, and ends with 75, as it does when its time runs out, or 130
    (`attnprior.train.stopping`). Where the recipe wants several processes, this one starts them.
    """
    args = parser(stage).parse_args(argv)
    with stopping.signals(to_the_end=argv is None):
        if stage.shared and size() == 1 and (count := _processes(args)) > 1:
            return launch(stage.rule, sys.argv[1:] if argv is None else argv, count)
        return _run(stage, work, args)


def _processes(args: argparse.Namespace) -> int:
    try:
        return wanted(parse_params(args.params))
    except UserError:  # told by the job itself
        return 1


def _run(stage: Stage, work: Callable[[Job], dict], args: argparse.Namespace) -> int:
    job = None
    try:
        job = Job(stage, args)
        job.prepare()
        if not stage.checkpoint:
            job.begin()
        values = work(job)
        if leads():
            job.finish(values)
        return 0
    except stopping.Stopped as e:
        assert job is not None
        if leads():
            tell(str(e))
        job.stop(str(e))
        return e.status
    except BaseException as e:
        stopping.ignore()  # a signal now would keep this error from being told
        expected = isinstance(e, UserError)
        if not expected and isinstance(e, Exception):
            traceback.print_exc()
        text = one_line(e) if expected or isinstance(e, SystemExit) else one_line(f"{type(e).__name__}: {e}")
        text = text.removeprefix("params.yaml: ")  # it may stand in a file of studies/
        tell(f"error: {text}" if leads() else f"process {rank()}: {text}")
        if job is not None and not isinstance(e, BusyError):
            job.fail(text)
        if isinstance(e, SystemExit):
            raise
        return 130 if isinstance(e, KeyboardInterrupt) else 1
