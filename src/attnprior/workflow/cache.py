"""DVC's cache read without DVC: what dvc.lock records of each file, and whether the cached copies are whole.

DVC takes a read-only file in its cache for intact, so a damaged copy stays, is pushed and is checked out.
"""

import configparser
import hashlib
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from attnprior.errors import UserError, one_line, tell
from attnprior.files import write_json

LOCK = Path("dvc.lock")
STAMP = Path(".snakemake/attnprior-cache.json")  # size, time and inode of copies found whole


def folder() -> Path:
    """Return the folder of cached files."""
    for name in ("config.local", "config"):
        config = configparser.ConfigParser()
        try:
            config.read(Path(".dvc", name), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        if config.has_option("cache", "dir"):
            return Path(".dvc", config.get("cache", "dir"), "files/md5")
    return Path(".dvc/cache/files/md5")


def read_lock(path: Path = LOCK) -> dict:
    """Return the content of dvc.lock, every value as text; {} if there is none.

    Raises:
        ValueError: it is no YAML mapping.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    return _read_lock(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _read_lock(path: Path, *_state: int) -> dict:
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # texts only: the fastest
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except yaml.YAMLError as e:
        raise ValueError(one_line(e)) from e
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def recorded() -> Iterator[tuple[str, str, str]]:
    """Yield (stage, path, md5) of every file that dvc.lock records; folders first, then what lies in them."""
    try:
        stages = read_lock()["stages"]
        outs = [(n, o["path"], o["md5"]) for n, s in stages.items() for o in s.get("outs", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # `repair.restore_lock` says what is wrong with it
    for name, path, md5 in outs:
        yield name, path, md5
        if md5.endswith(".dir"):
            for entry in _listing(md5):
                yield name, f"{path}/{entry['relpath']}", entry["md5"]


def wrong_sizes() -> set[str]:
    """Return the stages that dvc.lock records with other sizes than their files have; DVC does not look."""
    wrong = set()
    for name, stage in read_lock().get("stages", {}).items():
        for entry in [*stage.get("deps", []), *stage.get("outs", [])]:
            paths = [entry["path"]]
            if entry["md5"].endswith(".dir"):
                paths = [f"{entry['path']}/{e['relpath']}" for e in _listing(entry["md5"])]
            if not paths:
                continue  # the cache does not have the list
            try:
                size = sum(os.stat(p).st_size for p in paths)
            except OSError:
                continue
            said = (entry.get("size"), entry.get("nfiles", str(len(paths))))
            if said != (str(size), str(len(paths))):
                wrong.add(name)
    return wrong


def _listing(md5: str) -> list[dict]:
    try:
        found = json.loads(_object(md5).read_text(encoding="utf-8"))
        return [e for e in found if isinstance(e["relpath"], str) and isinstance(e["md5"], str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _object(md5: str) -> Path:
    return folder() / md5[:2] / md5[2:]


def damaged_copies() -> dict[Path, set[str]]:
    """Return the cached copies whose content is not what their name says, and the stages that record them.

    A copy is read once; then its size, time and inode are enough.
    """
    try:
        known = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    whole: dict[str, list[int]] = {}
    damaged: dict[Path, set[str]] = {}
    for stage, _, md5 in recorded():
        path = _object(md5)
        if md5 in whole:
            continue
        try:
            stat = path.stat()
            stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            if known.get(md5) != stamp and path not in damaged:
                with open(path, "rb") as f:
                    if hashlib.file_digest(f, "md5").hexdigest() != md5.removesuffix(".dir"):
                        damaged[path] = set()
        except OSError:
            continue  # not there: `dvc pull` brings it, or it is only in git
        if path in damaged:
            damaged[path].add(stage)
        else:
            whole[md5] = stamp
    if whole != known:
        write_json(STAMP, whole)
    return damaged


def remove_damaged_copies() -> set[str]:
    """Delete damaged copies and return the stages whose record writes them again.

    Raises:
        UserError: one cannot be deleted.
    """
    stages = set()
    for path, names in damaged_copies().items():
        try:
            path.unlink()
        except OSError as e:
            raise UserError(f"{path}: damaged, and cannot be deleted ({e.strerror}); delete it") from e
        shown = ", ".join(sorted(names))
        tell(f"attnprior: {path}, DVC's copy of a file of {shown}, was damaged and is deleted")
        stages |= names
    return stages


def altered_records() -> set[str]:
    """Return the run.json files that were altered after DVC recorded them.

    What they say of the machine (commit, versions, times) has no other witness. A job that was run again
    writes another time of start and other seconds; a file in which one of both is as recorded, but not
    its bytes, is damaged.
    """
    altered = set()
    for _, path, md5 in recorded():
        if not path.endswith("run.json") or not os.path.isfile(path):
            continue
        content = Path(path).read_bytes()
        if hashlib.md5(content).hexdigest() == md5:
            continue
        try:
            before = _object(md5).read_bytes()
            then = json.loads(before)
            now = json.loads(content)
            same = any(now[k] == then[k] for k in ("started", "seconds"))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # nothing to compare with; an unreadable one is made again anyway
        if same:
            altered.add(path)
    return altered
