"""How the suite is shared among pytest's worker processes (`-n 2 --dist loadgroup`), and what tests tell."""

import signal

import pytest

from tests.workflow import project as projects
from tests.workflow import readers

# Groups of tests that take longest: first, so that no worker process is left with one at the end.
LONGEST = (
    "finished",
    "tests/workflow/test_matrix.py",
    "tests/faults/test_kills.py::test_kills_at_random_moments",
    "tests/workflow/test_agreement.py",
)


def pytest_configure():
    """Take SIGINT, which shells let background commands ignore: tests send it, and children inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project that `attnprior run` has made once, traced, and git has committed; no test changes it."""
    made = projects.create(tmp_path_factory.mktemp("finished") / "project")
    made.attnprior("run", **readers.tracing(made.traces))
    made.commit("Results")
    return made


@pytest.fixture
def measured(record_property):
    """Return a function that takes a line to be printed at the end: how much a test has compared."""
    return lambda text: record_property("measured", text)


def pytest_terminal_summary(terminalreporter):
    """Print what `measured` was given; workers hand it over with their reports."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    said = [(r.nodeid, text) for r in reports for name, text in r.user_properties if name == "measured"]
    if said:
        terminalreporter.section("measured")
    for test, text in said:
        terminalreporter.write_line(f"{test}: {text}")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist names the groups in the ids of tests, in the same hook
def pytest_collection_modifyitems(items):
    """Keep together what shares costly fixtures: a file's tests, and those of the finished project.

    The latter are two groups, since they take more than half of the time. Tests of faults are one each: they
    take minutes, and every worker process has their study soon.
    """
    groups = {item: _group(item) for item in items}
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(groups[item], len(place)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item]))


def _group(item) -> str:
    file = item.nodeid.split("::")[0]
    if file.startswith("tests/faults/"):
        return item.nodeid
    return "finished" if "finished" in item.fixturenames and not file.endswith("test_agreement.py") else file
