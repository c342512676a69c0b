import ast

import pytest

from attnprior import source
from attnprior.errors import UserError
from tests.processes import output


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A made-up package in place of attnprior's files: a function that writes one of them."""
    monkeypatch.setattr(source, "PACKAGE", tmp_path)
    source.code_files.cache_clear()
    source._imports.cache_clear()

    def write(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("__init__.py")
    write("stages/__init__.py")
    yield write
    source.code_files.cache_clear()
    source._imports.cache_clear()


def names(rule):
    return [f.removeprefix("src/attnprior/") for f in source.code_files(rule)]


def test_every_form_of_import_is_followed(package):
    package(
        "stages/a.py", "import attnprior.one\nfrom attnprior.two import f\nfrom attnprior.sub import three\n"
    )
    package("one.py", "from . import four\n")
    package("two.py", "from .sub.five import g\n")
    package("sub/__init__.py", "from .six import h\n")
    for name in ("three", "five", "six", "unused"):
        package(f"sub/{name}.py")
    package("four.py")
    assert names("a") == sorted(
        ["__init__.py", "stages/__init__.py", "stages/a.py", "one.py", "two.py", "four.py"]
        + [f"sub/{n}.py" for n in ("__init__", "three", "five", "six")]
    )


def test_imports_inside_functions_and_conditions_count(package):
    package("stages/a.py", "def f():\n    from attnprior import late\nif 0:\n    import attnprior.never\n")
    package("late.py")
    package("never.py")
    assert {"late.py", "never.py"} <= set(names("a"))


def test_an_attribute_is_no_module_and_other_packages_are_left_out(package):
    package("stages/a.py", "import json\nfrom attnprior.one import value\nfrom attnpriors import x\n")
    package("one.py", "value = 1\n")
    assert names("a") == ["__init__.py", "one.py", "stages/__init__.py", "stages/a.py"]


def test_circular_imports_end(package):
    package("stages/a.py", "import attnprior.one\n")
    package("one.py", "import attnprior.stages.a\n")
    assert names("a") == ["__init__.py", "one.py", "stages/__init__.py", "stages/a.py"]


def test_a_missing_stage_and_a_syntax_error_name_the_file(package):
    with pytest.raises(UserError, match="stages/absent.py: missing"):
        source.code_files("absent")
    package("stages/broken.py", "def f(:\n")
    with pytest.raises(UserError, match="broken.py: line 1"):
        source.code_files("broken")


def test_all_modules_that_the_stage_really_imports_are_in_the_closure():
    code = (
        "import sys, attnprior.stages.train_student, attnprior.train.students, attnprior.train.checkpoint\n"
        "print(*sorted(m for m in sys.modules if m.split('.')[0] == 'attnprior'))"
    )
    modules = output(code).split()
    files = set(source.code_files("train_student"))
    for module in modules:
        path = source.PREFIX + "/" + "/".join(module.split(".")[1:])
        assert {path + ".py", path.rstrip("/") + "/__init__.py"} & files, module


def test_named_files_exist_and_parse():
    for name in source.code_files("fetch_dataset"):
        ast.parse(source.code_path(name).read_text())


def test_stages_do_not_depend_on_the_engines_or_on_each_other():
    files = source.code_files("train_student")
    assert not [f for f in files if "/workflow/" in f or "/report/" in f]
    assert [f for f in files if "/stages/" in f] == [
        f"src/attnprior/stages/{n}.py"
        for n in ("__init__", "arguments", "device", "job", "launch", "train_student")
    ]
