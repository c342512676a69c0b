"""Who holds a file or runs in this checkout, as the system tells; nothing is locked to find out."""

import os
from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether a process of this machine has the number `pid`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def holders(path, *, writing: bool = False, table="/proc/locks") -> list[int]:
    """Return the processes that hold a lock on the file, with `writing` an exclusive one (Linux).

    Locks of processes in other containers are not seen.
    """
    try:
        stat = os.stat(path)
        lines = Path(table).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    found: dict[int, None] = {}
    for line in lines:
        words = line.split()
        if "->" in words or device not in words:  # "->" waits for the lock
            continue
        kind, pid = words[-5], words[-4]
        if kind == "WRITE" or not writing:
            found[int(pid)] = None
    return list(found)


def running(word: str, folder=".") -> list[int]:
    """Return the processes that work in `folder` and have `word` in a part of their command line (Linux)."""
    here, own, found = Path(folder).resolve(), os.getpid(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if (
                int(entry.name) != own
                and any(word in w for w in words[:4])
                and (entry / "cwd").resolve() == here
            ):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return sorted(found)
