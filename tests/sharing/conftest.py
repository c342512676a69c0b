"""The finished project of the workflow's tests serves here, too."""

from tests.workflow.conftest import finished, project

__all__ = ["finished", "project"]
