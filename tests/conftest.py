"""How the suite is shared among pytest's worker processes (`-n 2 --dist loadgroup`), and what tests tell."""

import signal

import pytest

# Files of `make test-faults` that take longest: first, so that no worker process is left with one at the end.
LONGEST = ("tests/workflow/test_matrix.py", "tests/faults/test_kills.py", "tests/faults/test_damage.py")


def pytest_configure():
    """Take SIGINT, which shells let background commands ignore: tests send it, and children inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def pytest_collection_modifyitems(items):
    """Keep together what shares costly fixtures: a file's tests, and those of the finished project.

    The latter are two groups, since they take more than half of the time.
    """
    first = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.nodeid.split("::")[0], len(first)))
    for item in items:
        group = item.nodeid.split("::")[0]
        if "finished" in item.fixturenames and not group.endswith("test_agreement.py"):
            group = "finished"
        item.add_marker(pytest.mark.xdist_group(group))
