"""Parameter files beside `params.yaml`: `studies/*.yaml`, with entries of the same registries.

Names are unique over all files. An entry refers to entries of its own file, of `params.yaml`, or of a file
that holds no studies (data sets that several papers share).
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attnprior.errors import UserError, nearest, one_line

PARAMS = "params.yaml"
FOLDER = "studies"
REGISTRIES = ("datasets", "models", "recipes", "teachers", "fits", "students", "studies")
DERIVED = "derived"  # key of merged settings: {dotted key: dotted keys of what it is derived from}
FILES = "files"  # key of merged settings: {dotted key: file} of the entries that stand beside params.yaml


def read_yaml(path):
    """Return the content of a YAML file.

    Raises:
        UserError: the file is missing or no YAML.
    """
    return parsed(path, read_text(path))


def read_text(path) -> str:
    """Return the text of a settings file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise UserError(
            f"{path}: cannot be read ({e.strerror}); run from the root of an attnprior checkout"
        ) from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: not valid YAML ({one_line(e)})") from e


def parsed(path, text: str):
    """Return the content of YAML text.

    Raises:
        UserError: it is no YAML.
    """
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise UserError(f"{path}: not valid YAML ({one_line(e)})") from e


def names(root=".") -> list[str]:
    """Return the parameter files beside `params.yaml`, sorted, relative to `root`.

    Raises:
        UserError: a file that is meant as one has another ending.
    """
    found = sorted(Path(root, FOLDER).glob("*.y*ml"))
    for path in found:
        if path.suffix != ".yaml":
            raise UserError(f"{FOLDER}/{path.name}: would not be read; its name must end in .yaml: rename it")
    return [f"{FOLDER}/{p.name}" for p in found]


def merge(params: dict, others: Mapping[str, dict]) -> dict:
    """Return `params`, the content of `params.yaml`, with the entries of other files added.

    Raises:
        UserError: a file has another section than a registry, or a name that another file has.
    """
    merged = {k: dict(v) if k in REGISTRIES and isinstance(v, dict) else v for k, v in params.items()}
    files: dict[str, str] = {}
    for path, content in others.items():
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise UserError(f"{path}: must be a mapping of sections such as `students:`, is {kind}")
        for section, entries in content.items():
            if section not in REGISTRIES:
                hint = f"{nearest(str(section), REGISTRIES)}; allowed: {', '.join(REGISTRIES)}"
                raise UserError(f"{path}: unknown section {section!r}{hint}")
            if not isinstance(entries, dict):
                raise UserError(f"{path}: {section} must be a mapping of names, is {type(entries).__name__}")
            own = merged.setdefault(section, {})
            for name, values in entries.items():
                key = f"{section}.{name}"
                if name in own:
                    raise UserError(
                        f"{path}: {key} stands in {files.get(key, PARAMS)}, too; rename one of them"
                    )
                own[name] = values
                files[key] = path
    return {**merged, FILES: files}


def known(params: Mapping, section: str) -> str:
    """Return, for messages, the names of a section, or where to look if they are many."""
    found = sorted(name for name in params[section] if not is_derived(params, f"{section}.{name}"))
    if len(found) <= 20:
        return ", ".join(found) or "none"
    files = f"{PARAMS} and {FOLDER}/*.yaml" if params.get(FILES) else PARAMS
    return f"{len(found)} names, see {section} in {files}"


def sources(params: Mapping, key: str) -> tuple[str, ...]:
    """Return the dotted keys, each standing in a file, that the entry at `key` follows from."""
    return params.get(DERIVED, {}).get(key, (key,))


def is_derived(params: Mapping, key: str) -> bool:
    """Return whether an entry stands in no file but follows from another one at a scale."""
    return sources(params, key) != (key,) and not key.startswith("studies.")


def file_of(params: Mapping, key: str) -> str:
    """Return the file in which the entry at a dotted key (or one inside of it) stands."""
    return params.get(FILES, {}).get(".".join(key.split(".")[:2]), PARAMS)


def file_behind(params: Mapping, key: str) -> str:
    """Return the file of the entry at a dotted key (or of one around it), or of what that is derived from."""
    entry = ".".join(key.split(".")[:2])
    return file_of(params, sources(params, entry)[0])


@contextlib.contextmanager
def of_file(path: str) -> Iterator[None]:
    """Let errors of the checks, which speak of `params.yaml`, name the file in which the entry stands."""
    try:
        yield
    except UserError as e:
        raise UserError(str(e).replace(f"{PARAMS}:", f"{path}:", 1)) from e


def located(path: str, key: str) -> str:
    """Return how messages name a key: with its file, unless that is `params.yaml`."""
    return key if path == PARAMS else f"{path}:{key}"


def part(params: dict, files: set[str] | None) -> dict:
    """Return what of merged settings stands in `files` (all if None)."""
    return {
        section: {
            n: v for n, v in values.items() if files is None or file_of(params, f"{section}.{n}") in files
        }
        if section in REGISTRIES and isinstance(values, dict)
        else values
        for section, values in params.items()
        if section != FILES
    }


def has_studies(params: Mapping, path: str) -> bool:
    """Return whether a file holds studies, so that other files must not refer to its entries."""
    return any(p == path and key.startswith("studies.") for key, p in params.get(FILES, {}).items())


def check_sections(path: str, text: str) -> None:
    """Check that each section stands once in a file, of which a reader takes the last alone.

    By its lines, which costs nothing: a study in a lost section is unknown, so nothing else would be checked.

    Raises:
        UserError: names the line.
    """
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        section = line.partition(":")[0].strip()
        if line[:1].isalpha() and section in REGISTRIES:
            if section in seen:
                raise UserError(
                    f"{path}: line {number}: {section} stands here twice; put all below the first"
                )
            seen.add(section)


def check_plain(path: str, text: str) -> None:
    """Check that a file has each name once, and neither anchors nor merge keys.

    YAML readers take the last of two equal keys. `dvc exp run -S` loses a change to a mapping that an entry
    has from a merge key (`<<`), and changes all entries that share an anchor.

    Raises:
        UserError: names the line.
    """
    import yaml

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    seen: set[int] = set()

    def visit(node) -> None:
        if id(node) in seen and not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise UserError(f"{path}: line {line} is used again through an anchor; write the entry out")
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for child in node.value:
                visit(child)
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if key.value in keys:
                    raise UserError(f"{path}: line {key.start_mark.line + 1}: {key.value} stands here twice")
                keys.add(key.value)
                visit(value)

    if root is not None:
        visit(root)


def reachable(params: dict, studies: Iterable[str]) -> set[str]:
    """Return the files to check for these studies: theirs, those without studies, and `params.yaml`."""
    files: dict[str, str] = params.get(FILES, {})
    own = {file_of(params, f"studies.{name}") for name in studies}
    shared = set(files.values()) - {p for k, p in files.items() if k.startswith("studies.")}
    return {PARAMS} | own | (shared if own - {PARAMS} else set())
