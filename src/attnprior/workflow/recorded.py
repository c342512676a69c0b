"""What `dvc.lock` recorded of each file, and where that content still is."""

import hashlib
import json
from pathlib import Path, PurePosixPath

from attnprior.errors import UserError
from attnprior.workflow.dvc_objects import Objects, md5
from attnprior.workflow.params import read_yaml

LOCK = "dvc.lock"


class Recorded:
    """The files of a list of `dvc.lock` (outs or deps of stages), by path."""

    def __init__(self, entries: list[dict], objects: Objects) -> None:
        self._objects = objects
        self._entries = {e["path"]: str(e.get("md5", "")) for e in entries}
        self._listings: dict[str, dict[str, str] | None] = {}

    def names(self, path: str) -> bool:
        """Return whether `path`, or a directory above it, is recorded."""
        return self._owner(path) is not None

    def digest(self, path: str) -> str | None:
        """Return the recorded MD5 of `path`; None if not recorded, or if its directory's listing is lost."""
        owner = self._owner(path)
        if owner is None or owner == path:
            return self._entries[path] if owner else None
        if owner not in self._listings:
            self._listings[owner] = self._listing(owner)
        return (self._listings[owner] or {}).get(str(PurePosixPath(path).relative_to(owner)))

    def find(self, path: str) -> Path | None:
        """Return a file that has the recorded content of `path`: of the workspace, cache or remote."""
        digest = self.digest(path)
        if digest is None:
            return None
        here = Path(path)
        return here.resolve() if md5(here) == digest else self._objects.find(digest)

    def _owner(self, path: str) -> str | None:
        above = (path, *map(str, PurePosixPath(path).parents))
        return next((p for p in above if p in self._entries), None)

    def _listing(self, directory: str) -> dict[str, str] | None:
        """Return {relative path: MD5} of a recorded directory, or None if nothing holds it any more."""
        digest = self._entries[directory]
        found = self._objects.find(digest)
        if found is not None:
            listing = json.loads(found.read_text(encoding="utf-8"))
        else:
            listing = workspace_listing(Path(directory))
            text = json.dumps(listing, sort_keys=True)
            if hashlib.md5(text.encode()).hexdigest() + ".dir" != digest:
                return None
        return {entry["relpath"]: entry["md5"] for entry in listing}


def workspace_listing(directory: Path) -> list[dict[str, str | None]]:
    """Return DVC's listing of a directory as it lies here."""
    files = sorted(
        (f.relative_to(directory) for f in directory.rglob("*") if f.is_file()), key=lambda p: p.parts
    )
    return [{"md5": md5(directory / f), "relpath": f.as_posix()} for f in files]


def locked_stages() -> dict[str, dict]:
    """Return the stages of `dvc.lock`.

    Raises:
        UserError: there is none, or nothing is recorded in it.
    """
    if not Path(LOCK).is_file():
        raise UserError(f"{LOCK}: missing, so nothing is recorded here; run `attnprior run`")
    return (read_yaml(LOCK) or {}).get("stages") or {}
