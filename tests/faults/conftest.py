import pytest

from tests.faults import study


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The study that nothing disturbed, made once; no test changes it."""
    made = study.create(tmp_path_factory.mktemp("undisturbed") / "project")
    made.attnprior("run", **study.TRACKED)
    made.commit("Results")
    return made


@pytest.fixture(scope="session")
def expected(undisturbed):
    """The bytes of every artifact."""
    return undisturbed.contents()


@pytest.fixture
def project(undisturbed, tmp_path):
    """The finished study as a test may change it."""
    return undisturbed.copy(tmp_path / "project")
