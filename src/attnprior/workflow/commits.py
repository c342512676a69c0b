"""What git knows of a commit that a job recorded, and whether the job's code was that of the commit."""

import hashlib
import subprocess
from typing import Any

DIRTY = "-dirty"


class Commits:
    """Questions to git, each asked once; without git or the commit the answers are unknown (None)."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], str | None] = {}
        self._titles: dict[str, str | None] = {}

    def about(self, recorded: str | None, code: dict[str, str]) -> dict[str, Any]:
        """Return what is known of a recorded commit and of `code` (path -> SHA-256) in it.

        `dirty` says that tracked files differed from the commit; `other_code` lists the source files of the
        job that did, None where that cannot be told; `in_head` says whether HEAD has exactly this code.
        """
        if not recorded:
            return {"id": None, "dirty": None, "title": None, "other_code": None, "in_head": None}
        name = recorded.removesuffix(DIRTY)
        title = self._title(name)
        other = None if title is None else self._other(name, code)
        head = self._other("HEAD", code)
        return {
            "id": name,
            "dirty": recorded.endswith(DIRTY),
            "title": title,
            "other_code": other,
            "in_head": None if head is None else not head,
        }

    def _title(self, name: str) -> str | None:
        if name not in self._titles:
            shown = _git("show", "-s", "--format=%cs %s", name, "--")
            self._titles[name] = None if shown is None else shown.decode(errors="replace").strip()
        return self._titles[name]

    def _other(self, name: str, code: dict[str, str]) -> list[str] | None:
        """Return the paths whose content at commit `name` has another SHA-256."""
        todo = [path for path in code if (name, path) not in self._files]
        if todo:
            asked = "".join(f"{name}:./{path}\n" for path in todo).encode()
            answer = _git("cat-file", "--batch", stdin=asked)
            if answer is None:
                return None
            for path in todo:
                head, _, answer = answer.partition(b"\n")
                words = head.split()
                if len(words) != 3 or words[1] != b"blob":
                    self._files[name, path] = None
                    continue
                size = int(words[2])
                self._files[name, path] = hashlib.sha256(answer[:size]).hexdigest()
                answer = answer[size + 1 :]
        return [path for path, wanted in code.items() if self._files[name, path] != wanted]


def _git(*arguments: str, stdin: bytes = b"") -> bytes | None:
    try:
        return subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
