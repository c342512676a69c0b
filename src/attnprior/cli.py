"""The `attnprior` command. Imports beyond the standard library happen inside the chosen command."""

import argparse
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

import attnprior
from attnprior.errors import UserError, one_line

LOG = Path("logs/attnprior.log")  # tracebacks go here
EXAMPLES = """examples:
  attnprior run                   make the active studies; repeat only what is stale
  attnprior run digits -n         list what would run
  attnprior run -- --cores 1      hand arguments to Snakemake
  attnprior status                jobs done and to do, and the last failures
  attnprior sync                  after a clone with `dvc pull`, or a checkout
  attnprior ui                    MLflow's pages on http://127.0.0.1:5000
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
    commands.add_parser("status", help="jobs done and to do, what DVC has not recorded, the last failures")

    study = commands.add_parser("study", help="list studies, or show one")
    verbs = study.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("list", help="all studies of params.yaml")
    show = verbs.add_parser("show", help="arms, jobs and costs of one study: operations, time, memory, disk")
    show.add_argument("study", metavar="STUDY")
    show.add_argument("--json", action="store_true", help="print the numbers as JSON")

    commands.add_parser("track", help="bring MLflow up to date with the event logs (safe to repeat)")
    ui = commands.add_parser("ui", help="open MLflow's pages on this machine only")
    ui.add_argument("--port", type=int, default=5000)

    make = commands.add_parser(
        "make", help="what dvc.yaml calls: make the stale jobs of RULEs for the targets after --"
    )
    make.add_argument("rules", nargs="+", metavar="RULE")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or 1 after one line on the screen."""
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
        print(f"error: {one_line(e)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on", file=sys.stderr)
        return 130
    except Terminated:
        print("error: terminated; the same command goes on", file=sys.stderr)
        return 143
    except Exception as e:
        where = _log_traceback()
        print(
            f"error: {type(e).__name__}: {one_line(e)}{f' (traceback: {where})' if where else ''}",
            file=sys.stderr,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1


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
    if args.command in ("track", "ui"):
        from attnprior.workflow import tracking

        if args.command == "ui":
            return tracking.ui(Path("."), port=args.port)
        print(tracking.track(Path(".")))
        return 0
    from attnprior.workflow import inspect

    if args.command == "study" and args.verb == "show":
        from attnprior.workflow.show import show_study

        return show_study(args.study, as_json=args.json)
    if args.command == "study":
        return inspect.list_studies()
    return {"sync": inspect.sync_command, "check": inspect.check_command, "status": inspect.status}[
        args.command
    ]()


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
