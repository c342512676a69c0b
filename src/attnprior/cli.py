"""The `attnprior` command. Imports beyond the standard library happen inside the chosen command."""

import argparse
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

import attnprior
from attnprior.errors import UserError, one_line, tell

LOG = Path("logs/attnprior.log")  # tracebacks go here
EXAMPLES = """examples:
  attnprior run                   make the active studies; repeat only what is stale
  attnprior run digits -n         list what would run
  attnprior run -- --cores 1      hand arguments to Snakemake
  attnprior status                what is done, runs, waits and failed; also during a run
  attnprior study show digits     what a study compares and costs, before it runs
  attnprior doctor                what would hinder a run on this machine
  attnprior sync                  after a clone with `dvc pull`, or a checkout
  attnprior ui                    MLflow's pages on http://127.0.0.1:5000
  attnprior verify digits-impulse --seeds 0     make a recorded run again and compare
  attnprior trace digits impulse top1_mean      where a number of a table comes from
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line of `attnprior`."""
    top = argparse.ArgumentParser(
        prog="attnprior",
        description=attnprior.__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"attnprior {attnprior.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="make studies: recover, sync, run what is stale, record")
    run.add_argument(
        "studies", nargs="*", metavar="STUDY", help="studies to make, or `all` (default: the active ones)"
    )
    run.add_argument(
        "-n", "--dry-run", action="store_true", help="list the jobs that would run, change nothing"
    )

    commands.add_parser(
        "sync", help="after a clone, pull or checkout: let Snakemake take over finished files"
    )
    commands.add_parser("check", help="prove that Snakefile, dvc.yaml and arms.yaml declare the same work")
    commands.add_parser("status", help="jobs done, running, waiting, failed; time left; what DVC lacks")

    doctor = commands.add_parser(
        "doctor", help="look for what would hinder a run here: versions, memory, disk, locks, …"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")

    study = commands.add_parser("study", help="list studies, or show one")
    verbs = study.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("list", help="all studies of params.yaml")
    show = verbs.add_parser("show", help="arms, jobs and costs of one study: operations, time, memory, disk")
    show.add_argument("study", metavar="STUDY")
    show.add_argument("--json", action="store_true", help="print the numbers as JSON")

    _add_verify(commands)
    _add_trace(commands)

    track = commands.add_parser("track", help="bring MLflow up to date with the event logs (safe to repeat)")
    track.add_argument(
        "--models",
        nargs="*",
        metavar="ARM",
        help="log trained students as MLflow models, such as digits-copy (default: those of active studies)",
    )
    track.add_argument(
        "--system-metrics",
        action="store_true",
        help="add time, memory, processor use and disk traffic of jobs",
    )
    ui = commands.add_parser("ui", help="open MLflow's pages on this machine only")
    ui.add_argument("--port", type=int, default=5000)

    make = commands.add_parser(
        "make", help="what dvc.yaml calls: make the stale jobs of RULEs for the targets after --"
    )
    make.add_argument("rules", nargs="+", metavar="RULE")
    return top


def _add_verify(commands) -> None:
    verify = commands.add_parser(
        "verify",
        help="make recorded jobs again elsewhere and compare with what dvc.lock recorded",
        description="Makes recorded jobs again in a scratch folder, with the code and settings of this"
        " checkout, and compares with what dvc.lock recorded. An arm: training and evaluation, from the"
        " recorded data, teacher and fit. A study: everything. The checkout is not changed; run.json, logs"
        " and the provenance in report.html are not compared.",
        epilog="exit status: 0 identical; 3 equal within tolerance; 4 different; 5 reference not available;"
        " 2 wrong usage, or a job failed",
    )
    verify.add_argument(
        "target",
        nargs="?",
        metavar="STUDY|ARM",
        help="a study, or an arm as DATASET-STUDENT (default: the active studies)",
    )
    verify.add_argument(
        "--seeds", nargs="+", type=int, default=[], metavar="K", help="these seeds only, and no tables"
    )
    verify.add_argument("--keep", action="store_true", help="keep the scratch folder")
    verify.add_argument("--scratch", metavar="DIR", help="where to make it (default: the temporary folder)")


def _add_trace(commands) -> None:
    trace = commands.add_parser(
        "trace",
        help="the chain of jobs behind a file or a number of a table",
        description="Prints the jobs behind a file or a number, down to the data set: settings, commit, code,"
        " inputs, seed, machine, time and MLflow run. Exit status 1: a file is not what its job wrote, or a"
        " number not what its runs give.",
        epilog="targets: FILE; TABLE.csv:ROW[:COLUMN], as results/digits/table.csv:impulse:top1_mean or"
        " results/digits/results.csv:impulse/seed0:top1; STUDY ARM [COLUMN], as digits impulse top1_mean",
    )
    trace.add_argument("target", nargs="+", metavar="TARGET")
    trace.add_argument("--code", action="store_true", help="list each source file with its hash")
    trace.add_argument("--json", action="store_true", help="print everything as JSON")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or 1 after one line on the screen (`verify`: 2)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    use_checkout(argv)
    own, after = argv, []
    if "--" in argv:
        cut = argv.index("--")
        own, after = argv[:cut], argv[cut + 1 :]
    args = parser().parse_args(own)
    if after and args.command not in ("run", "make"):
        parser().error(f"nothing may follow -- after {args.command}")
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return dispatch(args, after)
    except UserError as e:
        _log_traceback()
        tell(f"error: {one_line(e)}")
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        tell("error: interrupted; the same command goes on")
        return 130
    except Terminated:
        tell("error: terminated; the same command goes on")
        return 143
    except Exception as e:
        where = _log_traceback()
        tell(f"error: {type(e).__name__}: {one_line(e)}{f' (traceback: {where})' if where else ''}")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 2 if args.command == "verify" else 1


class Terminated(BaseException):
    """SIGTERM came, outside of the time in which a run hands it on to its jobs."""


def _terminated(*_: object) -> None:
    raise Terminated


def use_checkout(argv: list[str]) -> None:
    """Run the code of the checkout in the working directory, wherever `attnprior` was installed from.

    Jobs always run it, and an installed copy of another state would judge them wrongly.
    """
    source = Path("src").resolve()
    package = source / "attnprior"
    if (package / "cli.py").is_file() and package != Path(attnprior.__file__).resolve().parent:
        path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, "-m", "attnprior", *argv], env)


def dispatch(args: argparse.Namespace, after: list[str]) -> int:
    """Call the chosen command."""
    if not Path("Snakefile").is_file():
        raise UserError(f"{Path.cwd()}: no Snakefile here; run from the root of an attnprior checkout")
    from attnprior.workflow import environment

    os.environ.update(environment.QUIET)
    if args.command == "run":
        from attnprior.workflow.run import run

        return run(args.studies, after, dry=args.dry_run)
    if args.command == "make":
        from attnprior.workflow.make import make

        return make(args.rules, after)
    if args.command == "verify":
        from attnprior.workflow.verify import verify

        return verify(args.target, args.seeds, keep=args.keep, scratch=args.scratch)
    if args.command == "trace":
        from attnprior.workflow.trace import trace

        return trace(args.target, code=args.code, as_json=args.json)
    if args.command == "track":
        from attnprior.workflow.track import track_command

        return track_command(args.models, system=args.system_metrics)
    if args.command == "ui":
        from attnprior.workflow.mlflow_ui import ui

        return ui(Path("."), port=args.port)
    if args.command == "status":
        from attnprior.workflow.status import status

        return status()
    if args.command == "doctor":
        from attnprior.workflow.doctor import doctor

        return doctor(as_json=args.json)
    if args.command == "study" and args.verb == "show":
        from attnprior.workflow.show import show_study

        return show_study(args.study, as_json=args.json)
    from attnprior.workflow import inspect

    if args.command == "study":
        return inspect.list_studies()
    return {"sync": inspect.sync_command, "check": inspect.check_command}[args.command]()


def _log_traceback() -> Path | None:
    """Append the present traceback to the log and return its path, if it can be written."""
    try:
        LOG.parent.mkdir(exist_ok=True)
        handler = logging.FileHandler(LOG)
    except OSError:
        return None
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # the disk is full
    log = logging.getLogger("attnprior.cli")
    log.propagate = False
    log.addHandler(handler)
    log.error(traceback.format_exc())
    log.removeHandler(handler)
    handler.close()
    return LOG


if __name__ == "__main__":
    sys.exit(main())
