"""`attnprior run` beside a test that disturbs it."""

import subprocess
import sys
import time

from tests.workflow import project as projects


class Background:
    """A run in the folder of `project`; once it has ended, another may be started."""

    waits, ends = 300, 600  # seconds at most: for something to happen, and for the run to end

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

    def seen(self):
        """Return what to say when that was too short."""
        return "waited too long"

    def until(self, true):
        """Wait until `true()`, while the run lives."""
        end = time.monotonic() + self.waits
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, self.seen()
            time.sleep(0.2)

    def finish(self, seconds=None):
        """Wait for the run and return what it said."""
        out, err = self.process.communicate(timeout=seconds or self.ends)
        return subprocess.CompletedProcess([], self.process.returncode, out, err)
