"""A job on a node that shares no file system with the machine that asked for it.

`python -m attnprior.workflow.node URL JOB` fetches the job's inputs and the checkpoint of an earlier attempt,
runs the job's command with the code of this checkout, which must be that of the other machine, in a folder of
its own below `.snakemake/node`, and sends back outputs, logs and exit status; while it runs, its logs and
every new checkpoint. SIGTERM, SIGUSR1, SIGINT and a request at the URL ask the stage to stop: a training
saves its state.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from attnprior.errors import UserError, one_line, tell
from attnprior.files import read_json, sha256, write_json
from attnprior.seconds import seconds
from attnprior.source import PACKAGE, code_path
from attnprior.workflow import transport
from attnprior.workflow.benchmarks import benchmark_text
from attnprior.workflow.remote_jobs import CANCEL, END, LIVE, WORK

CHECKOUT = PACKAGE.parent.parent
FOLDER = CHECKOUT / ".snakemake/node"
STRICT = "set -euo pipefail; exec "  # as Snakemake starts commands; the stage takes the place of the shell
BEAT = "ATTNPRIOR_REMOTE_SECONDS"  # environment: seconds between two looks at the URL, and two words to it
BEAT_SECONDS = 20.0
REST = 20.0  # times what sending the last checkpoint took pass before the next is sent
EARLIER_SECONDS = 120.0  # for a cancelled attempt to send its checkpoint
POLL = 0.2
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Node:
    """One attempt at one job.

    Raises:
        UserError: ATTNPRIOR_REMOTE_SECONDS is no number from 0.2.
    """

    def __init__(self, url: str, job_id: str) -> None:
        self._url, self._at = url, f"jobs/{job_id}"
        self._folder = FOLDER / job_id
        self._job: dict = {}
        self._preparing = True
        self._child: subprocess.Popen | None = None  # while it is there to be sent signals
        self._asked: str | None = None  # why the stage was asked to stop
        self._benchmark: str | None = None
        self._saved: tuple[int, float] = (0, 0.0)  # the checkpoint sent last, and when the next may be
        self._over = threading.Event()
        self._pause = seconds(BEAT, BEAT_SECONDS, least=0.2)

    def run(self) -> int:
        """Do the job and return the exit status of its stage, or 1 if it did not come to that.

        Raises:
            UserError: nothing could be told to the other side.
        """
        for number in SIGNALS:
            signal.signal(number, self._handle)
        transport.patiently(lambda: transport.fetch(self._url, [f"{self._at}/{WORK}"], self._folder))
        if not (self._folder / self._at / WORK).exists():
            raise UserError(
                f"{self._url}/{self._at}/{WORK}: not there; it was taken back, or the URL differs"
            )
        self._job = read_json(self._folder / self._at / WORK)
        beat = threading.Thread(target=self._beat, daemon=True)
        beat.start()
        code, end = 1, {"status": "failed", "outputs": {}}
        try:
            self._prepare()
            code = self._stage()
            if code == 0:
                end = {"status": "success", "outputs": self._send_outputs()}
            else:
                self._send_checkpoint()
                end["error"] = self._asked or f"the stage ended with status {code} on node {_host()}"
        except (UserError, OSError) as e:
            end["error"] = f"node {_host()}: {one_line(e)}"
        self._preparing = False
        self._over.set()
        beat.join()
        self._last_word(end)
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _handle(self, number: int, _frame: object) -> None:
        # SIGUSR1 only ever asks, so it may come from several sides; others, the second time, end the stage.
        again = self._asked is not None and number != signal.SIGUSR1
        self._asked = self._asked or f"stopped by {signal.Signals(number).name}"
        if self._preparing:
            raise UserError(self._asked)
        if self._child is not None:
            os.kill(self._child.pid, signal.SIGTERM if again else signal.SIGUSR1)

    def _prepare(self) -> None:
        """Check the code, and bring inputs and checkpoint.

        Raises:
            UserError: the code differs, an input is not at the URL, or the URL fails.
        """
        for path, sha in self._job["code"].items():
            if not code_path(path).is_file() or sha256(code_path(path)) != sha:
                raise UserError(
                    f"{path} in {CHECKOUT} is not as on the machine that submits; check out the same commit,"
                    f" {self._job['environment'].get('ATTNPRIOR_COMMIT') or 'which is unknown'}"
                )
        self._wait_for_earlier()
        inputs = self._job["inputs"]
        cached = {sha: FOLDER / "files" / sha for sha in inputs.values()}
        missing = [f"files/{sha}" for sha, path in cached.items() if not path.exists()]
        transport.patiently(lambda: transport.fetch(self._url, missing, FOLDER))
        for path, sha in inputs.items():
            if f"files/{sha}" in missing and (not cached[sha].exists() or sha256(cached[sha]) != sha):
                cached[sha].unlink(missing_ok=True)
                raise UserError(
                    f"{path}: not at {self._url}/files/{sha}, or damaged (then delete it there); run again"
                )
            link = self._folder / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(cached[sha])
        for path in [*self._job["outputs"], *self._job["logs"].values()]:
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        if self._job["checkpoint"]:
            transport.fetch(self._url, [self._state()], self._folder)

    def _state(self) -> str:
        return f"{self._job['checkpoint']}/state.pt"

    def _wait_for_earlier(self) -> None:
        """Wait until cancelled attempts have sent their checkpoint, and remove what they left at the URL."""
        until = time.monotonic() + EARLIER_SECONDS
        for job_id in self._job["after"]:
            while LIVE in (there := transport.names(self._url, f"jobs/{job_id}")) and END not in there:
                if time.monotonic() > until:
                    break
                time.sleep(2)
            else:
                transport.remove(self._url, f"jobs/{job_id}")

    def _stage(self) -> int:
        """Run the job's command, send its checkpoints, and return its exit status."""
        source, programs = str(PACKAGE.parent), str(Path(sys.executable).parent)
        paths = {
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        }
        begun, self._preparing = time.monotonic(), False
        child = subprocess.Popen(
            ["bash", "-c", STRICT + self._job["command"]],
            cwd=self._folder,
            env={**os.environ, **self._job["environment"], **paths},
            stdin=subprocess.DEVNULL,
        )
        self._child = child
        if self._asked:  # in between
            child.send_signal(signal.SIGUSR1)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._child = None
                break
            if self._checkpoint_is_due():
                with contextlib.suppress(UserError, OSError):  # the next one
                    self._send_checkpoint()
            time.sleep(POLL)
        child.returncode = os.waitstatus_to_exitcode(status)
        self._benchmark = benchmark_text(time.monotonic() - begun, usage)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def _checkpoint_is_due(self) -> bool:
        return bool(self._job["checkpoint"]) and time.monotonic() >= self._saved[1]

    def _send_checkpoint(self) -> None:
        """Send the newest checkpoint if it is not at the URL. Stages replace the file: a link keeps one."""
        if not self._job["checkpoint"]:
            return
        state, kept, begun = self._folder / self._state(), self._folder / "state.pt", time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            kept.unlink(missing_ok=True)
            os.link(state, kept)
            stamp = kept.stat().st_mtime_ns
            if stamp != self._saved[0]:
                transport.send(self._url, {self._state(): kept})
                self._saved = stamp, 0.0
        now = time.monotonic()
        self._saved = self._saved[0], now + max(self._pause, REST * (now - begun))

    def _send_outputs(self) -> dict[str, str]:
        """Send the outputs and return their SHA-256."""
        found = {path: sha256(self._folder / path) for path in self._job["outputs"]}
        files = {f"files/{sha}": self._folder / path for path, sha in found.items()}
        transport.patiently(lambda: transport.send(self._url, files, once=True))
        return found

    def _beat(self) -> None:
        """Tell how far the job is, and look whether it is to stop, again and again."""
        for number in itertools.count(1):
            with contextlib.suppress(UserError, OSError):
                # Some places keep no time stamps: there only another size tells that the file is new.
                self._tell(LIVE, {"beat": number, "size": "." * (number % 2)})
                if CANCEL in transport.names(self._url, self._at):
                    os.kill(os.getpid(), signal.SIGUSR1)
            if self._over.wait(self._pause):
                return

    def _tell(self, name: str, words: dict) -> None:
        logs = {path: _text(self._folder / path) for path in self._job["logs"].values()}
        if self._job["benchmark"]:
            logs[self._job["benchmark"]] = self._benchmark
        path = self._folder / name
        write_json(path, {"node": _host(), "logs": logs, **words})
        transport.send(self._url, {f"{self._at}/{name}": path})

    def _last_word(self, end: dict) -> None:
        transport.patiently(lambda: self._tell(END, end))
        if end["status"] == "success" and self._job["checkpoint"]:
            with contextlib.suppress(UserError):
                transport.remove(self._url, self._job["checkpoint"])


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _host() -> str:
    return socket.gethostname()


def main(argv: list[str]) -> int:
    """Do the job and return the exit status."""
    try:
        return Node(*argv).run()
    except (UserError, OSError) as e:
        tell(f"error: {e}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
