"""What a stage really reads: with this folder on PYTHONPATH, every stage process notes it at its end.

Python imports this module at each start. In a stage, and only where ATTNPRIOR_TRACED names a folder, it
writes one JSON file with the source files imported, the files and folders opened for reading (reading for
a hash does not count) and the leaf keys of the settings looked at. The stage itself is not changed.
"""

import atexit
import dataclasses
import functools
import json
import os
import sys
from pathlib import Path

STAGE = "attnprior.stages."
# Settings objects and copies are made here, and the record of a job is written.
MAKING = {"config.py", "arguments.py", "dataclasses.py", "copy.py", "encoder.py"}
HASHING = {("files.py", "sha256"), ("source.py", "_imports")}  # read the content, but make no use of it


def install(folder: str, command: list[str]) -> None:
    """Note what this process reads and write it to `folder` when the process ends."""
    from attnprior import config, files
    from attnprior.stages import arguments

    package = Path(config.__file__).parent
    root = os.getcwd() + os.sep
    opened: set[str] = set()
    keys: set[str] = set()
    ended = False

    def read(path) -> None:
        if isinstance(path, (str, bytes, os.PathLike)) and not ended:
            name = os.path.abspath(os.fsdecode(path))
            if name.startswith(root) and os.path.exists(name) and not hashing():
                opened.add(name.removeprefix(root))

    def hashing() -> bool:
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            code = frame.f_code
            if (os.path.basename(code.co_filename), code.co_name) in HASHING:
                return True
        return False

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, mode, flags = args
            if "r" in mode if isinstance(mode, str) else not flags & (os.O_WRONLY | os.O_RDWR):
                read(path)
        elif event in ("os.listdir", "os.scandir"):
            read(args[0] if args[0] is not None else ".")

    def report() -> None:
        nonlocal ended
        ended = True
        names = {getattr(m, "__file__", None) for n, m in sys.modules.items() if n.startswith("attnprior")}
        names.add(str(package / "stages" / f"{command[0].removeprefix(STAGE)}.py"))  # it is __main__
        code = sorted("src/attnprior/" + os.path.relpath(n, package) for n in names if n)
        noted = {
            "command": command,
            "code": code,
            "files": sorted(p for p in opened if not f"{p}/".startswith("src/")),
            "keys": sorted(keys),
        }
        Path(folder, f"{os.getpid()}-{os.urandom(4).hex()}.json").write_text(json.dumps(noted))

    note_settings(config, arguments, keys)
    note_tensors(files, read)
    sys.addaudithook(hook)
    atexit.register(report)


def note_settings(config, arguments, keys: set[str]) -> None:
    """Note every field of a settings object, and every entry of the raw settings, that is looked at."""
    build, recipe_of, build_study, parse = (
        config.build,
        config.recipe_of,
        config.build_study,
        arguments.parse_params,
    )

    making = 0  # objects that are being made of others do not count as looking

    def placed(made, place):
        object.__setattr__(made, "_place", place)  # where the fields of this object come from
        return made

    def look(self, name):
        found = object.__getattribute__(self, name)
        if name in type(self).__dataclass_fields__:
            place = object.__getattribute__(self, "__dict__").get("_place")
            if place is not None and not making and not dataclasses.is_dataclass(found):
                keys.add(place(name))
        return found

    for cls in vars(config).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            cls.__getattribute__ = look  # type: ignore[method-assign,assignment]

    @functools.wraps(build)
    def noted_build(cls, values, where):
        return placed(build(cls, values, where), lambda name: f"{where}.{name}")

    @functools.wraps(build_study)
    def noted_study(values, where):
        nonlocal making
        making += 1
        try:
            return placed(build_study(values, where), lambda name: f"{where}.{name}")
        finally:
            making -= 1

    @functools.wraps(recipe_of)
    def noted_recipe(student, recipe, where):
        named = object.__getattribute__(student, "recipe")
        own = object.__getattribute__(student, "overrides")
        return place(recipe_of(student, recipe, where), "", own, f"{where}.overrides", f"recipes.{named}")

    def place(made, prefix, own, over, base):
        """Place a recipe and its parts: keys that the overrides `own` name are theirs."""
        for field in dataclasses.fields(made):
            part = object.__getattribute__(made, field.name)
            if dataclasses.is_dataclass(part):
                inner = own.get(field.name)
                inner = inner if isinstance(inner, dict) else {}
                place(part, f"{prefix}{field.name}.", inner, over, base)
        return placed(made, lambda name: f"{over if name in own else base}.{prefix}{name}")

    class Noted(dict):
        """A part of the settings that notes the leaves looked up in it."""

        def __init__(self, values, where: str = "") -> None:  # asdict() copies it from its pairs
            super().__init__(
                {
                    k: Noted(v, f"{where}.{k}" if where else k) if isinstance(v, dict) else v
                    for k, v in dict(values).items()
                }
            )
            self.where = where

        def __getitem__(self, key):
            found = super().__getitem__(key)
            if not isinstance(found, Noted):
                keys.add(f"{self.where}.{key}")
            return found

        def get(self, key, default=None):
            return self[key] if key in self else default  # noqa: SIM401 (to note it)

        def items(self):
            # Who goes through all of it makes use of all.
            if os.path.basename(sys._getframe(1).f_code.co_filename) not in MAKING:
                self.whole()
            return super().items()

        def whole(self) -> None:
            for key, value in super().items():
                if isinstance(value, Noted):
                    value.whole()
                else:
                    keys.add(f"{self.where}.{key}")

    @functools.wraps(parse)
    def noted_parse(text):
        return Noted(parse(text), "")

    config.build, config.recipe_of, config.build_study = noted_build, noted_recipe, noted_study
    arguments.parse_params = noted_parse


def note_tensors(files, read) -> None:
    """Note safetensors files, which are opened outside of Python."""
    opened = files.opened_tensors

    @functools.wraps(opened)
    def noted(path, *args):
        read(path)
        return opened(path, *args)

    files.opened_tensors = noted


_command = [a for a in sys.orig_argv if a.startswith(STAGE)]
if "ATTNPRIOR_TRACED" in os.environ and _command:
    install(os.environ["ATTNPRIOR_TRACED"], sys.orig_argv[sys.orig_argv.index(_command[0]) :])
