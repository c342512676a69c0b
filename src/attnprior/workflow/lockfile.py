"""`dvc.lock` with some stages recorded anew, in the very bytes that DVC writes.

DVC reads the whole file with its comments and writes all of it again: of 215 stages that takes 25 s, for
one stage as for all. Here DVC's own writer makes the text of these stages, which takes the place of the old.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnprior.files import write_text

HEAD = "schema: '2.0'\nstages:\n"
STAGE = re.compile(r"  ([^\s:'\"&*!|>%@`#{}\[\],?-][^\s:#]*):\n")  # at the depth of a stage stands its name


def write(stages: Sequence) -> None:
    """Record DVC stages as they are, all of one `dvc.yaml`; a file of another form is left to DVC.

    Raises:
        UserError: the file cannot be written; it is as it was.
    """
    from dvc.stage.serialize import to_lockfile
    from dvc.utils.serialize import dumps_yaml

    file = stages[0].dvcfile
    path = Path(file.path).with_suffix(".lock")
    made = {name: values for stage in stages for name, values in to_lockfile(stage).items()}
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    text = replaced(before, {n: dumps_yaml({"stages": {n: v}}).partition("\n")[2] for n, v in made.items()})
    if text is None:
        file.dump_stages(list(stages), update_pipeline=False)
    elif text != before:
        write_text(path, text)
        file.repo.scm_context.track_file(os.path.relpath(path))  # staged in git where DVC is set so


def replaced(text: str, made: Mapping[str, str]) -> str | None:
    """Return the text of a lock file in which stages have those of `made`, new ones at the end.

    None if it is not of the form that DVC gives it: nothing but its schema and stages, block by block.
    """
    text = text or HEAD
    if not text.startswith(HEAD) or not text.endswith("\n"):
        return None
    blocks: dict[str, list[str]] = {}
    for line in text[len(HEAD) :].splitlines(keepends=True):
        if line.startswith("    ") and blocks:
            blocks[next(reversed(blocks))].append(line)
        elif (match := STAGE.fullmatch(line)) and match[1] not in blocks:
            blocks[match[1]] = [line]
        else:
            return None
    if not all(STAGE.match(block) for block in made.values()):
        return None
    kept = {name: "".join(lines) for name, lines in blocks.items()}
    return HEAD + "".join({**kept, **made}.values())
