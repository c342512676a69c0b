import pytest


@pytest.fixture
def project(finished, tmp_path):
    """The finished project as a test may change it."""
    return finished.copy(tmp_path / "project")
