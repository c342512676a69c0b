"""The `attnprior` command. Imports beyond the standard library happen inside the chosen command."""

import argparse
import logging
import os
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
    verbs.add_parser("show", help="arms, seeds and jobs of one study").add_argument("study", metavar="STUDY")

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
    try:
        return dispatch(args, after)
    except UserError as e:
        _log_traceback()
        print(f"error: {one_line(e)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as e:
        where = _log_traceback()
        print(
            f"error: {type(e).__name__}: {one_line(e)}{f' (traceback: {where})' if where else ''}",
            file=sys.stderr,
        )
    return 1


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
    if args.command == "track":
        from attnprior.workflow.track import track_command

        return track_command(args.models, system=args.system_metrics)
    if args.command == "ui":
        from attnprior.workflow.mlflow_ui import ui

        return ui(Path("."), port=args.port)
    from attnprior.workflow import inspect

    if args.command == "study":
        return inspect.list_studies() if args.verb == "list" else inspect.show_study(args.study)
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
    log = logging.getLogger("attnprior.cli")
    log.propagate = False
    log.addHandler(handler)
    log.error(traceback.format_exc())
    log.removeHandler(handler)
    handler.close()
    return LOG


if __name__ == "__main__":
    sys.exit(main())
