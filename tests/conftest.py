"""How the suite is shared among pytest's worker processes (`-n 2 --dist loadgroup`)."""

import pytest


def pytest_collection_modifyitems(items):
    """Keep together what shares costly fixtures: a file's tests, and those of the finished project.

    The latter are two groups, since they take more than half of the time.
    """
    for item in items:
        group = item.nodeid.split("::")[0]
        if "finished" in item.fixturenames and not group.endswith("test_agreement.py"):
            group = "finished"
        item.add_marker(pytest.mark.xdist_group(group))
