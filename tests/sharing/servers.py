"""Servers for tests, on loopback only, stopped by process group: only what was started here is ended."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process that listens on `port` of loopback."""

    def __init__(self, command: list[str], port: int, log: Path, env: dict[str, str] | None = None) -> None:
        self._command, self.port, self._log, self._env = command, port, log, env
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                said = self._log.read_text(errors="replace")[-2000:]
                assert self._process.poll() is None, f"{self._command[0]} ended:\n{said}"
                assert time.monotonic() < deadline, f"{self._command[0]} does not listen:\n{said}"
                time.sleep(0.1)

    def kill(self) -> None:
        """End the server and its workers at once (SIGKILL)."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def ssh_server(folder: Path) -> Server:
    """Return an SSH server with a host key, a key pair and authorized keys of its own, all in `folder`.

    It lets the user of this process in, with `folder`/user as key. A stranger's key is `folder`/stranger.
    """
    folder.mkdir()
    for name in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized_keys").write_bytes((folder / "user.pub").read_bytes())
    port = free_port()
    settings = f"""
        ListenAddress 127.0.0.1:{port}
        HostKey {folder}/host
        AuthorizedKeysFile {folder}/authorized_keys
        PidFile none
        PasswordAuthentication no
        KbdInteractiveAuthentication no
        PermitRootLogin prohibit-password
        StrictModes no
        UsePAM no
        Subsystem sftp internal-sftp
    """
    (folder / "sshd_config").write_text(settings)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd started by root wants it
    program = shutil.which("sshd", path=SEARCH)
    assert program is not None
    return Server([program, "-D", "-e", "-f", str(folder / "sshd_config")], port, folder / "sshd.log")


def s3_server(folder: Path, key: str, secret: str) -> Server:
    """Return rclone's S3 server of the buckets (folders) in `folder`, which it lets `key` use."""
    (folder / "bucket").mkdir(parents=True)
    port = free_port()
    command = [str(shutil.which("rclone", path=SEARCH)), "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{key},{secret}", "--config", "", "--dir-cache-time", "1s", str(folder)]
    return Server(command, port, folder.with_name(f"{folder.name}.log"))


def has_program(name: str) -> bool:
    """Return whether a program is there, beside this interpreter and in the folders of root, too."""
    return shutil.which(name, path=SEARCH) is not None


@contextlib.contextmanager
def replies_lost(server: Server, path: str, lost: set[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the port of a proxy before an HTTP server, and the numbers of requests whose replies it lost.

    Every request reaches the server. Of those whose path ends with `path` the ones numbered in `lost`
    (from 1) get no reply: the connection is closed.
    """
    count, closed, lock = [0], [], threading.Lock()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers))
            reply = upstream.getresponse()
            content = reply.read()
            upstream.close()
            if self.path.endswith(path):
                with lock:
                    count[0] += 1
                    number = count[0]
                if number in lost:
                    closed.append(number)
                    self.close_connection = True
                    return
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield proxy.server_address[1], closed
        proxy.shutdown()


@contextlib.contextmanager
def black_hole(*, accepts: bool) -> Iterator[int]:
    """Yield a port of loopback that never answers: connections hang, or are accepted and met by silence."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(100 if accepts else 0)
        port = listener.getsockname()[1]
        while not accepts:  # fill the queue of those who wait to be accepted
            caller = stack.enter_context(socket.socket())
            caller.settimeout(0.5)
            try:
                caller.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port
