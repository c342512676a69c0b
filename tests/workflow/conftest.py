import pytest

from tests.workflow import project as projects
from tests.workflow import readers


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project that `attnprior run` has made once, traced, and git has committed; no test changes it."""
    made = projects.create(tmp_path_factory.mktemp("finished") / "project")
    made.attnprior("run", **readers.tracing(made.traces))
    made.commit("Results")
    return made


@pytest.fixture
def project(finished, tmp_path):
    """The finished project as a test may change it."""
    return finished.copy(tmp_path / "project")
