"""What is kept of an experiment that DVC runs in a folder of its own and deletes afterwards."""

import contextlib
import os
import shutil
from pathlib import Path

EXPERIMENTS = Path("logs/experiments")  # below it: a copy of an experiment's own logs folder, by its name


def name() -> str | None:
    """Return the name of the experiment (`dvc exp run`) that this process works for, if any."""
    return os.environ.get("DVC_EXP_NAME") or None


def keep_logs(folder: Path | str = ".") -> None:
    """Copy the logs in `folder` to the checkout that the experiment belongs to, if that is another.

    With `--temp` and `--queue` DVC works in a copy of the checkout below .dvc/tmp, which takes the logs of
    its jobs with it when it goes; DVC_ROOT names the checkout. A disk that is full costs the logs only.
    """
    source, main, called = Path(folder).resolve() / "logs", os.environ.get("DVC_ROOT"), name()
    if called is None or not main or not source.is_dir() or Path(main).resolve() == source.parent:
        return
    with contextlib.suppress(OSError):
        shutil.copytree(source, Path(main) / EXPERIMENTS / called, dirs_exist_ok=True)


def is_of_experiment(log: Path, root: Path) -> bool:
    """Return whether an event log of the checkout `root` was copied there by `keep_logs`."""
    return log.is_relative_to(root / EXPERIMENTS)
