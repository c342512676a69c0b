"""Adding studies to `active` in `params.yaml`, of which every other character stays as it is."""

from pathlib import Path

from attnprior.files import write_text
from attnprior.workflow.studyfiles import PARAMS


def activate(names: list[str]) -> None:
    """Add studies that are not there yet to `active`, which has at least one, in its own style."""
    import yaml

    text = Path(PARAMS).read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert isinstance(root, yaml.MappingNode)
    active = next(value for key, value in root.value if key.value == "active")
    last = active.value[-1]
    new = [n for n in names if n not in [item.value for item in active.value]]
    at = last.end_mark.index
    if active.flow_style:
        added = "".join(f", {n}" for n in new)
    else:
        line_end = text.find("\n", at)
        at = len(text) if line_end < 0 else line_end
        added = "".join(f"\n{' ' * active.start_mark.column}- {n}" for n in new)
    write_text(PARAMS, text[:at] + added + text[at:])
    print(f"attnprior: added {', '.join(names)} to `active` in {PARAMS}")
