"""Python processes of their own that find this package, installed or not."""

import os
import socket
import subprocess
import sys

from attnprior.source import PACKAGE


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that computes with one thread."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1", **more}


def start(arguments: list[str], cwd=None, **more: str) -> subprocess.Popen:
    """Start Python with `arguments` and pipes for both outputs."""
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment(**more), stdout=pipe, stderr=pipe, text=True)


def output(code: str, *arguments: str, cwd=None) -> str:
    """Return what Python prints when it runs `code`."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, check=True
    ).stdout


def shared(code: str, seconds: float) -> list[tuple[int, str, str]]:
    """Return (status, output, errors) of two processes that run `code` at most so long, and may meet."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = str(s.getsockname()[1])
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = [start(["-c", code], RANK=str(number), **where) for number in range(2)]
    ended = [process.communicate(timeout=seconds) for process in started]
    return [(process.returncode, *said) for process, said in zip(started, ended, strict=True)]
