"""The files of a folder, tar or zip: their names, and their contents in the order in which they lie."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path

from attnprior.data.rules import is_archive
from attnprior.errors import UserError, one_line

LITTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # left by file managers, as are names with a dot in front
BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)


class Tree:
    """A folder, or a tar or zip file with one inside. Names have `/` between their parts.

    `where` is the key that named it, for errors: UserError where it is missing, no archive or broken.
    """

    def __init__(self, path, where: str) -> None:
        self._path, self._where = Path(path), where
        if not self._path.exists():
            raise UserError(f"{where}: {path} does not exist; name a folder, tar or zip that is there")
        if self._path.is_file() and not is_archive(self._path.name):
            raise UserError(
                f"{where}: {path} is no folder, tar or zip; it ends in none of .zip, .tar, .tar.gz, …"
            )

    def names(self) -> list[str]:
        """Return the names of all files, sorted, without what file managers leave."""
        return sorted(n for n in self._names() if not _litter(n))

    def read(self, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of the wanted files, in the order in which they lie."""
        try:
            yield from self._read(wanted)
        except BROKEN as e:
            raise self._broken(e) from e

    def get(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of a few small files by name.

        Raises:
            UserError: one is missing.
        """
        found = dict(self.read(set(names)))
        for name in names:
            if name not in found:
                raise UserError(f"{self._where}: {self._path} has no {name} in it; it is another archive")
        return found

    def _broken(self, e: Exception) -> UserError:
        reason = one_line(e)
        if "could not be opened" in reason:  # followed by what each compression had to say
            reason = "no tar or zip file"
        return UserError(f"{self._where}: {self._path} cannot be read ({reason}); get or pack it again")

    def _names(self) -> list[str]:
        try:
            if self._path.is_dir():
                return [
                    Path(folder, name).relative_to(self._path).as_posix()
                    for folder, _, files in os.walk(self._path, followlinks=True)
                    for name in files
                ]
            if zipfile.is_zipfile(self._path):
                with zipfile.ZipFile(self._path) as z:
                    return [i.filename for i in z.infolist() if not i.is_dir()]
            with tarfile.open(self._path) as t:
                return [_clean(m.name) for m in t if m.isfile()]
        except BROKEN as e:
            raise self._broken(e) from e

    def _read(self, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
        if self._path.is_dir():
            for name in self.names():
                if name in wanted:
                    yield name, (self._path / name).read_bytes()
        elif zipfile.is_zipfile(self._path):
            with zipfile.ZipFile(self._path) as z:
                for info in z.infolist():
                    if info.filename in wanted:
                        yield info.filename, z.read(info)
        else:
            with tarfile.open(self._path, "r|*") as t:  # forwards only: no second decompression
                for member in t:
                    name = _clean(member.name)
                    if member.isfile() and name in wanted:
                        f = t.extractfile(member)
                        assert f is not None
                        yield name, f.read()


def _clean(name: str) -> str:
    return name.removeprefix("./")


def _litter(name: str) -> bool:
    return any(part.startswith(".") or part in LITTER for part in name.split("/"))
