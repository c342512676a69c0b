"""Values that papers published, to be set beside ours; one YAML file per family of papers."""

import re
from pathlib import Path
from typing import Any

from attnprior.errors import UserError, one_line

FOLDER = Path(__file__).resolve().parent
FIELDS = (
    *("key", "paper", "table", "dataset", "model", "arm", "reference", "setting", "metric"),
    *("unit", "value", "status", "source", "note"),
)
NOT_RECOVERED = "not_recovered"


def files() -> list[str]:
    """Return the files of this package with values, named as sources are: from the project's root."""
    return sorted(f"src/attnprior/published/{p.name}" for p in FOLDER.glob("*.yaml"))


def keys() -> set[str]:
    """Return the keys of all values in this package, without reading these: it is asked at every start."""
    lines = re.compile(r"^- \{key: (\S+),", re.MULTILINE)
    return {k for p in FOLDER.glob("*.yaml") for k in lines.findall(p.read_text(encoding="utf-8"))}


def read(paths) -> dict[str, dict[str, Any]]:
    """Return {key: entry} of published values; `value` is None where it is not recovered.

    Raises:
        UserError: a file is unreadable, an entry has other fields than `FIELDS`, or a key stands twice.
    """
    import yaml

    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8")
            rows = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except (OSError, ValueError, yaml.YAMLError) as e:
            raise UserError(f"{path}: cannot be read ({one_line(e)}); restore it with git") from e
        for row in rows:
            if tuple(row) != FIELDS or row["key"] in found:
                raise UserError(
                    f"{path}: {row.get('key')}: stands twice, or fields are not {', '.join(FIELDS)}"
                )
            if (row["value"] is None) != (row["status"] == NOT_RECOVERED):
                raise UserError(f"{path}: {row['key']}: value {row['value']} with status {row['status']}")
            found[row["key"]] = row
    return found
