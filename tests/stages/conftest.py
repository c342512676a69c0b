import pytest

from attnprior.stages import fetch_dataset, fit_impulse, pretrain_teacher
from tests.stages import commands


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A project with the digits, both teachers and a fit; read, never changed."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert fetch_dataset.main(commands.fetch()) == 0
        assert pretrain_teacher.main(commands.teacher("mae")) == 0
        assert pretrain_teacher.main(commands.teacher("untrained")) == 0
        assert fit_impulse.main(commands.fit()) == 0
    return root


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    """The project as a test may add to it: working directory, inputs linked."""
    for name in ("data", "teachers", "fits"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
