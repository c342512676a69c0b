"""Contents by their MD5, from DVC's cache or its default remote; nothing is written to either.

Like `engines`, this calls interfaces of DVC that are not documented; `tests/workflow/test_recorded.py`
holds what is assumed of them.
"""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from attnprior.errors import UserError, one_line


def md5(path: Path) -> str | None:
    """Return the MD5 of a file as DVC records it, or None if it cannot be read."""
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "md5").hexdigest()
    except OSError:
        return None


class Objects:
    """Files by MD5; those of the remote are fetched into `folder`."""

    def __init__(self, folder: Path) -> None:
        """Open the cache of the checkout in the working directory.

        Raises:
            UserError: DVC is not set up here.
        """
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        try:
            self._repo = Repo()
        except DvcException as e:
            raise UserError(f"dvc: {one_line(e)}; run from the root of an attnprior checkout") from e
        self._folder = folder
        self._remote = None
        with contextlib.suppress(DvcException):  # no remote, or one that cannot be addressed by content
            self._remote = self._repo.cloud.get_remote_odb()

    def close(self) -> None:
        self._repo.close()

    def find(self, digest: str) -> Path | None:
        """Return a file whose content (or directory listing) has the MD5 `digest`, if there is one."""
        plain = digest.removesuffix(".dir")
        cached = Path(self._repo.cache.local.oid_to_path(digest))
        if md5(cached) == plain:
            return cached
        fetched = self._folder / digest
        if self._remote is not None and not fetched.exists():
            with contextlib.suppress(Exception):  # whatever the remote's library raises: not to be had
                self._folder.mkdir(parents=True, exist_ok=True)
                partial = self._folder / f".{digest}"
                address = self._remote.oid_to_path(digest)
                with self._remote.fs.open(address, "rb") as source, open(partial, "wb") as target:
                    shutil.copyfileobj(source, target)
                os.replace(partial, fetched)
        return fetched if md5(fetched) == plain else None
