"""Downloads that resume, try again, are verified before they count, and never hang on a slow server."""

import contextlib
import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import attnprior
from attnprior.errors import UserError, one_line

MIB = 2**20
FOLDER = "ATTNPRIOR_DOWNLOADS"  # where archives are kept, instead of data/downloads
MIRRORS = "ATTNPRIOR_MIRRORS"  # addresses of folders with the archives, tried first; blanks between


@dataclass(frozen=True)
class Archive:
    """An official file: its name, its published MD5, and where it lies, the official address first."""

    name: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server and how often to try."""

    tries: int = 5  # without a MiB of progress, for each address
    backoff: float = 1.0  # seconds before the second try, doubled each time
    timeout: float = 30.0  # seconds without a byte
    window: float = 60.0  # seconds in which `least` bytes must come
    least: int = 64 * 1024


class _Temporary(Exception):
    """Worth another try."""


class _Refused(Exception):
    """This address will not give the file."""


def folder() -> Path:
    """Return the folder in which downloaded archives are kept."""
    return Path(os.environ.get(FOLDER) or "data/downloads")


def fetch(archive: Archive, where: str, say: Callable[[str], None], patience: Patience | None = None) -> Path:
    """Return the verified archive in the downloads folder, downloading what of it is missing.

    What came is kept as NAME.part, from which a later call goes on, and renamed once its MD5 is right.
    Several processes may ask at once; one downloads, the others wait.

    Raises:
        UserError: no address gives the file, it is another one, or the folder cannot be written.
    """
    patience = patience or Patience()
    target = folder() / archive.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{archive.name}.lock"):
            if not target.exists():
                _download(archive, target, where, say, patience)
                return target
    except OSError as e:
        raise UserError(
            f"{target.parent}: cannot be written ({e.strerror or e}); make room, or name another folder in"
            f" {FOLDER}"
        ) from e
    return verified(target, archive, where)


def verified(path: Path, archive: Archive, where: str) -> Path:
    """Return `path`, a local file, after checking that it is the official archive.

    Raises:
        UserError: it is missing or has another MD5.
    """
    try:
        found = md5(path)
    except OSError as e:
        raise UserError(
            f"{where}.path: {path} cannot be read ({e.strerror}); put {archive.name} there,"
            f" from {archive.urls[0]}"
        ) from e
    if found != archive.md5:
        raise UserError(
            f"{where}: {path} has MD5 {found}, the official {archive.name} has {archive.md5};"
            f" delete it and get it again from {archive.urls[0]}"
        )
    return path


def md5(path: Path) -> str:
    """Return the MD5 of a file as hex."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _download(
    archive: Archive, target: Path, where: str, say: Callable[[str], None], patience: Patience
) -> None:
    part = target.with_name(f"{target.name}.part")
    bases = [base.rstrip("/") for base in os.environ.get(MIRRORS, "").split()]
    reasons = []
    for url in [*(f"{base}/{archive.name}" for base in bases), *archive.urls]:
        say(f"downloading {url}")
        begun = _size(part) > 0
        for _ in range(2 if begun else 1):  # a wrong hash may come from what another attempt had left
            try:
                _from(url, part, say, patience)
            except _Refused as e:
                reasons.append(f"{url}: {e}")
                break
            found = md5(part)
            if found == archive.md5:
                os.replace(part, target)
                say(f"{target}: {target.stat().st_size / MIB:.1f} MiB, MD5 {found} as published")
                return
            part.unlink()
            reasons.append(f"{url}: MD5 {found}, not {archive.md5}")
            say(f"{reasons[-1]}; not kept")
    # The last reason of each address; a wrong file says more than an address that is closed.
    wrong = [r for r in reasons if ": MD5 " in r]
    told = wrong[-1] if wrong else "; ".join(dict.fromkeys(reasons))
    raise UserError(
        f"{where}: {archive.name} cannot be downloaded ({told}); get {archive.urls[0]} by hand and put it"
        f" into {target.parent}, or name it in {where}.path"
    )


def _from(url: str, part: Path, say: Callable[[str], None], patience: Patience) -> None:
    """Complete `part` from one address."""
    idle, pause = 0, patience.backoff
    while True:
        before = _size(part)
        try:
            _stream(url, part, say, patience)
            return
        except _Temporary as e:
            if abs(_size(part) - before) >= MIB:
                idle, pause = 0, patience.backoff
            idle += 1
            if idle >= patience.tries:
                raise _Refused(f"{e}, {patience.tries} times") from e
            say(f"{e}; once more in {pause:g} s")
        time.sleep(pause)
        pause *= 2


def _stream(url: str, part: Path, say: Callable[[str], None], patience: Patience) -> None:
    have = _size(part)
    headers = {"User-Agent": f"attnprior/{attnprior.__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=patience.timeout) as response:
            if have and not _goes_on(response, have):
                have = 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with open(part, "ab" if have else "wb") as f:
                _copy(response, f, have, total, say, patience)
    except urllib.error.HTTPError as e:
        if e.code == 416:  # nothing after what there is: complete, or of another file; its hash will tell
            return
        if e.code >= 500 or e.code in (408, 429):
            raise _Temporary(f"status {e.code} {e.reason}") from e
        raise _Refused(f"status {e.code} {e.reason}") from e
    except (TimeoutError, ConnectionError, http.client.HTTPException) as e:
        raise _Temporary(f"{type(e).__name__} {one_line(e)}".strip()) from e
    except urllib.error.URLError as e:
        if isinstance(e.reason, (TimeoutError, ConnectionResetError)):
            raise _Temporary(one_line(e.reason)) from e
        raise _Refused(one_line(getattr(e.reason, "strerror", None) or e.reason)) from e
    except ValueError as e:
        raise _Refused(one_line(e)) from e  # no address at all


def _goes_on(response, have: int) -> bool:
    """Return whether the answer begins where the part ends; a server may send the whole instead."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _copy(response, f, have: int, total: int | None, say: Callable[[str], None], patience: Patience) -> None:
    since, came, told = time.monotonic(), 0, have
    while block := response.read1(MIB):
        f.write(block)
        have, came = have + len(block), came + len(block)
        if total and have - told >= max(total // 10, 8 * MIB):
            told = have
            say(f"{have / MIB:.0f} of {total / MIB:.0f} MiB")
        if time.monotonic() - since > patience.window:
            if came < patience.least:
                raise _Temporary(f"only {came} bytes in {patience.window:g} s")
            since, came = time.monotonic(), 0
    if total is not None and have < total:
        raise _Temporary(f"ended after {have} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
