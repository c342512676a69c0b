import pytest

from tests.workflow import project as projects


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project that `attnprior run` has made once and git has committed; never changed by a test."""
    made = projects.create(tmp_path_factory.mktemp("finished") / "project")
    made.attnprior("run")
    made.commit("Results")
    return made


@pytest.fixture
def project(finished, tmp_path):
    """The finished project as a test may change it."""
    return finished.copy(tmp_path / "project")
