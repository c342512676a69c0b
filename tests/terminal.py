"""A pseudo-terminal for a child process, and the screen that a person in front of it would see."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable

CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """Interprets the control sequences of simple programs: cursor up, erase, home, cursor on and off."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []  # lines that left the screen at the top
        self.cursor_shown = True
        self._lines, self._x, self._y, self._rest = [""] * rows, 0, 0, ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode

    def feed(self, data: bytes) -> None:
        text, i = self._rest + self._decode(data), 0
        self._rest = ""
        while i < len(text):
            if text[i] != "\x1b":
                self._put(text[i])
                i += 1
            elif found := CONTROL.match(text, i):
                self._control(*found.groups())
                i = found.end()
            else:
                self._rest = text[i:]
                return

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n" or self._x == self.columns:
            self._y += 1
            if self._y == self.rows:
                self.scrolled.append(self._lines.pop(0))
                self._lines.append("")
                self._y -= 1
            if char != "\n":
                self._x = 0
        if char not in "\r\n":
            line = self._lines[self._y].ljust(self._x)
            self._lines[self._y] = line[: self._x] + char + line[self._x + 1 :]
            self._x += 1

    def _control(self, argument: str, letter: str) -> None:
        if letter == "A":
            self._y = max(0, self._y - int(argument or 1))
        elif letter == "K":
            self._lines[self._y] = "" if argument == "2" else self._lines[self._y][: self._x]
        elif letter == "J":
            self._lines = [""] * self.rows
        elif letter == "H":
            self._x = self._y = 0
        elif argument == "?25":
            self.cursor_shown = letter == "h"
        else:
            assert letter == "m", f"unknown control sequence {argument}{letter}"

    def resize(self, columns: int, rows: int) -> None:
        """Change the size as a terminal that cuts lines does."""
        while len(self._lines) > rows:
            self.scrolled.append(self._lines.pop(0))
            self._y = max(0, self._y - 1)
        self._lines = [line[:columns] for line in self._lines] + [""] * (rows - len(self._lines))
        self.columns, self.rows, self._x = columns, rows, min(self._x, columns)

    def text(self) -> str:
        """Return what is on the screen now."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip()

    def everything(self) -> str:
        """Return what is on the screen and what has scrolled away."""
        return "\n".join([*self.scrolled, self.text()])


def run(
    command: list[str],
    cwd,
    env: dict[str, str],
    columns: int = 80,
    rows: int = 24,
    act: Callable[[Screen, int, int], None] = lambda screen, fd, pid: None,
    timeout: float = 300,
) -> tuple[int, Screen]:
    """Run `command` on a terminal of its own and return its exit status and the screen it leaves.

    `act` is called after every piece of output with the screen, the terminal and the process.
    """
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, env)
    screen, deadline = Screen(columns, rows), time.monotonic() + timeout
    set_size(fd, columns, rows)
    try:
        while time.monotonic() < deadline:
            if select.select([fd], [], [], 0.5)[0]:
                try:
                    data = os.read(fd, 65536)
                except OSError:  # Linux says so when the other side is closed
                    break
                if not data:
                    break
                screen.feed(data)
                act(screen, fd, pid)
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(fd)
    return status, screen


def set_size(fd: int, columns: int, rows: int) -> None:
    """Tell the terminal its size; its process gets SIGWINCH."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
