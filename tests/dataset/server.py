"""A small web server on loopback that answers as real ones do on bad days."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `files` (name -> content); `script` says what to do with the next requests, then all is well.

    Words: "503", "404", "cut" (half of the body, then the connection ends), "whole" (ignores a range),
    "trickle" (a byte now and then), "other" (another content of the same size).
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.script = files, list[str]()
        self.asked: list[tuple[str, str | None]] = []  # path and Range of each request
        self.url = ""


@contextmanager
def served(files: dict[str, bytes]):
    """Yield a running `Server`."""
    state = Server(files)
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            word = state.script.pop(0) if state.script else ""
            content = state.files.get(self.path.rpartition("/")[2])
            if word == "503" or content is None or word == "404":
                self.send_response(503 if word == "503" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if word == "other":
                content = bytes(len(content))
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and word != "whole" else 0
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if word == "trickle":
                for i in range(len(body)):
                    if closing.wait(0.02):
                        return
                    try:
                        self.wfile.write(body[i : i + 1])
                    except OSError:  # the other side gave up
                        return
                return
            self.wfile.write(body[: len(body) // 2] if word == "cut" else body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> str:
    """Return an address at which nobody answers."""
    with served({}) as server:
        url = server.url
    time.sleep(0.01)
    return url
