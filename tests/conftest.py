"""How the suite is split among pytest's worker processes (`-n`): see `pytest_collection_modifyitems`."""

import pytest


def pytest_collection_modifyitems(items):
    """Keep together what shares costly fixtures: the tests of a file, and all tests on the finished project."""
    for item in items:
        group = "finished" if "finished" in item.fixturenames else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
