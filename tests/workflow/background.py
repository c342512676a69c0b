"""`attnprior run` beside a test that disturbs it."""

import subprocess
import sys
import time

from tests.workflow import project as projects


class Background:
    """A run in the folder of `project`; once it has ended, another may be started."""

    def __init__(self, project, *arguments, **more):
        self.project = project
        self.start(*arguments, **more)

    def start(self, *arguments, **more):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attnprior", *arguments],
            cwd=self.project.root,
            env=projects.environment(**self.project.environment(**more)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, true, seconds=600, *, told=lambda: "waited too long"):
        """Wait until `true()`, while the run lives and at most so long; `told()` says what was seen."""
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, told()
            time.sleep(0.2)

    def finish(self, seconds=1200):
        """Wait for the run and return what it said."""
        out, err = self.process.communicate(timeout=seconds)
        return subprocess.CompletedProcess([], self.process.returncode, out, err)
