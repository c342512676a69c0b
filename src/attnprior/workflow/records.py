"""Where jobs leave their records, and whether these follow from settings and code; starts no engine.

A quick look for `attnprior doctor`. What decides is `attnprior.workflow.state`, which reads all files.
"""

import json
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import sha256
from attnprior.workflow.params import subtree

FOLDERS = {"pretrain_teacher": "teachers", "fit_impulse": "fits", "train_student": "runs", "evaluate": "runs"}
NAMES = {
    "evaluate": "evaluate.run.json",
    "against_paper": "paper.run.json",
    "extract_maps": "maps.run.json",
    "draw": "draw.run.json",
    "report": "report.run.json",
}


def record_of(key: str) -> str:
    """Return the path of the run.json of the job `key`, such as runs/digits/copy/seed0/run.json."""
    rule, _, rest = key.partition("/")
    if rule == "fetch_dataset":
        return f"data/{rest}.run.json"
    return f"{FOLDERS.get(rule, 'results')}/{rest}/{NAMES.get(rule, 'run.json')}"


def judged(settings: dict, key: str, hashes: dict[str, str | None], root=".") -> str:
    """Return "missing", "stale" or "current" of a job, by its record, its settings and its code.

    `hashes` remembers the SHA-256 of the source files.
    """
    path = Path(root, record_of(key))
    if not path.is_file():
        return "missing"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if any(subtree(settings, k) != v for k, v in json.loads(record["params"]).items()):
            return "stale"
        if not all(Path(root, p).is_file() for p in record["outputs"]):
            return "missing"
        code = {p: h for p, h in record["inputs"].items() if p.startswith("src/")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "stale"
    for name, then in code.items():
        if name not in hashes:
            hashes[name] = _hash(Path(root, name))
        if hashes[name] != then:
            return "stale"
    return "current"


def _hash(path: Path) -> str | None:
    try:
        return sha256(path)
    except UserError:
        return None
