"""Which source files a rule depends on: the import closure of its stage within the package."""

import ast
from functools import cache
from pathlib import Path

from attnprior.errors import UserError

PACKAGE = Path(__file__).resolve().parent
PREFIX = "src/attnprior"  # how files are named, wherever the package lies


@cache
def code_files(rule: str) -> list[str]:
    """Return the files of `attnprior` that `python -m attnprior.stages.<rule>` may import, sorted.

    Names are relative to the project root ("src/attnprior/files.py"). Imports inside functions
    and the `__init__.py` of every package on the way count, so a change anywhere in the closure
    is seen; nothing is imported to find out.

    Raises:
        UserError: no such stage, or a file of the closure does not parse.
    """
    start = f"attnprior.stages.{rule}"
    if _file(start) is None:
        raise UserError(f"{PREFIX}/stages/{rule}.py: missing; every rule needs its stage module")
    seen: set[str] = set()
    todo = [start]
    while todo:
        module = todo.pop()
        if module in seen or _file(module) is None:
            continue
        seen.add(module)
        todo += [module.rpartition(".")[0]] if "." in module else []
        todo += _imports(module)
    files = {f for m in seen if (f := _file(m)) is not None}
    return sorted(f"{PREFIX}/{f.relative_to(PACKAGE).as_posix()}" for f in files)


def code_path(name: str) -> Path:
    """Return where a file named as by `code_files` lies."""
    return PACKAGE / Path(name).relative_to(PREFIX)


def _file(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split(".")[1:])
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules of this package that `module` names in import statements."""
    path = _file(module)
    assert path is not None
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as e:
        raise UserError(f"{path}: line {e.lineno}: {e.msg}; correct it") from e
    parts = module.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found += [name, *(f"{name}.{a.name}" for a in node.names)]
    return tuple(m for m in found if m.split(".")[0] == "attnprior")
