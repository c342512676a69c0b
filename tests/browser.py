"""A headless Chromium, driven through the pipe of its DevTools protocol (standard library only)."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """Return the path of a Chromium on PATH, if there is one."""
    return next((p for name in PROGRAMS if (p := shutil.which(name))), None)


class Page:
    """One page; `events` holds everything that the browser reported."""

    def __init__(self, profile: Path) -> None:
        """Start a browser of its own with the folder `profile`."""
        found = program()
        assert found is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = (
            f"--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir='{profile}'"
        )
        # The protocol is spoken on file descriptors 3 and 4.
        command = f"exec '{found}' {flags} about:blank 3<&{to_browser} 4>&{from_browser}"
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(60)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], seconds)[0], "the browser says nothing"
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> None:
        """Load a file and wait for it."""
        seen = len(self.events)
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events[seen:]):
            self._read(60)

    def size(self, width: int, height: int = 800) -> None:
        """Set the size of the window in CSS pixels, as on a phone or a desk."""
        phone = width < 600
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **shape)

    def look(self, scheme: str = "light", media: str = "screen") -> None:
        """Ask for a light or dark page, on the screen or as printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def key(self, name: str, text: str = "", shift: bool = False) -> None:
        """Press and release a key such as Tab or a letter."""
        codes = {"Tab": 9, "Enter": 13, "End": 35, "ArrowDown": 40, " ": 32}
        code = codes.get(name, ord(name[0].upper()))
        common = {"key": name, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def shot(self, path: Path, whole: bool = False) -> None:
        """Save a picture of the page as PNG."""
        made = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def wait_for(self, script: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """Return every address that was asked for."""
        return [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return what stands in the console as warning or error, and exceptions."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
                found.append(params["entry"]["text"])
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
                found.append(str(params["args"]))
        return found
