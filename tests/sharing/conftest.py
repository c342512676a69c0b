"""The project of the workflow's tests serves here, too."""

from tests.workflow.conftest import project

__all__ = ["project"]
