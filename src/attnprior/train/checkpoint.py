"""Resumable state of a training job: one file, locked, removed on success."""

import contextlib
import fcntl
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnprior.errors import BusyError, UserError, one_line
from attnprior.files import atomic, left_over
from attnprior.seconds import seconds
from attnprior.train import stopping

SECONDS = 10.0  # between two saves, unless ATTNPRIOR_CHECKPOINT_SECONDS says otherwise (0: each epoch)
WORTH = 1.0  # seconds of training that are saved after the last epoch, for predictions and probes follow
REST = 20.0  # times what the last save took pass before the next, so that at most 5 % of the time is saving


class Checkpoint:
    """The folder of one job's state, held under a lock from construction to `close`.

    `key` is a digest of all that the state depends on. `state` is what the last attempt saved
    under the same key, or None; `job_id` and `attempts` (this one included) go on from there.
    A state of another key or one that cannot be read is reported to `say` and not used.

    Raises:
        BusyError: another process holds the folder.
        UserError: the folder cannot be written, or ATTNPRIOR_CHECKPOINT_SECONDS is no number from 0.
    """

    def __init__(self, folder: str | Path, key: str, job_id: str, say: Callable[[str], None]) -> None:
        self._folder, self._key, self._say = Path(folder), key, say
        self.path = self._folder / "state.pt"
        self.job_id, self.attempts = job_id, 1
        self._interval = seconds("ATTNPRIOR_CHECKPOINT_SECONDS", SECONDS, least=0)
        self._took = self.slowest_save = 0.0  # seconds
        self._lock: int | None = _locked(self._folder)
        self._saved_at = time.monotonic()
        self.state: dict[str, Any] | None = None
        found = self._read()
        if found is not None:
            self.job_id, self.attempts = found["job_id"], found["attempts"] + 1
            self.state = found["state"]
            self.save(found["epoch"], found["state"], found["step"])  # the count outlives the next kill
            steps = f" and {found['step']} steps" if found["step"] else ""
            self._say(f"resuming attempt {self.attempts} after epoch {found['epoch']}{steps} of {self.path}")
        self._epoch: int = found["epoch"] if found is not None else 0
        self._step: int = found["step"] if found is not None else 0

    @classmethod
    def follower(cls, folder: str | Path) -> "Follower":
        """Return what takes its place in the other processes of a training that several share."""
        return Follower(folder)

    @property
    def epoch(self) -> int:
        """Epochs done by earlier attempts."""
        return self._epoch

    def images(self, count: int, batch: int) -> int:
        """Return how many images earlier attempts trained on: of epochs of `count`, `batch` a step."""
        return self._epoch * count + min(count, self._step * batch)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def due(self, *, within: bool = False, last: bool = False) -> bool:
        """Return whether the last save is long enough ago; not `within` epochs where the end of each is.

        After the `last` epoch less is enough.
        """
        if self._interval <= 0:
            return not within
        rest = max(min(WORTH, self._interval), self._took) if last else max(self._interval, REST * self._took)
        return time.monotonic() - self._saved_at >= rest

    def save(self, epoch: int, state: dict[str, Any], step: int = 0) -> None:
        """Replace the saved state atomically; `state` holds tensors, numbers, texts, lists and dicts.

        It is that after `epoch` epochs and `step` optimizer steps of the next.

        Raises:
            UserError: it cannot be written; the one saved before is untouched.
        """
        import torch

        begin = time.monotonic()
        content = {
            "key": self._key,
            "job_id": self.job_id,
            "attempts": self.attempts,
            "epoch": epoch,
            "step": step,
            "state": state,
        }
        with atomic(self.path) as temporary:
            try:
                torch.save(content, temporary)
            except RuntimeError as e:  # PyTorch's writer tells a full disk so
                raise UserError(
                    f"{self.path}: cannot be written ({one_line(e)[:100]}); free space or make it writable"
                ) from e
        self._saved_at = time.monotonic()
        self._took = self._saved_at - begin
        self.slowest_save = max(self.slowest_save, self._took)

    def close(self, *, remove: bool = False) -> None:
        """Release the lock, and with `remove` delete the state: the job is done, a signal comes too late."""
        if self._lock is None:
            return
        if remove:
            stopping.ignore()
            for path in [self.path, *left_over(self.path), self._folder / "lock"]:
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # someone put a file there
                self._folder.rmdir()
        os.close(self._lock)
        self._lock = None

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        import torch

        try:
            with zipfile.ZipFile(self.path) as archive:
                damaged = archive.testzip()  # PyTorch compares no checksum and would go on from wrong numbers
            if damaged is not None:
                raise ValueError(f"{damaged}: wrong checksum")
            found = torch.load(self.path, map_location="cpu", weights_only=True)
            usable = (
                found["key"] == self._key
                and isinstance(found["state"], dict)
                and min(found["epoch"], found["step"]) >= 0
                and found["attempts"] > 0
            )
        except Exception as e:  # whatever a damaged file makes the reader raise: training can start afresh
            self._say(f"checkpoint {self.path} cannot be read ({one_line(e)[:200]}); training starts afresh")
            return None
        if not usable:
            self._say(
                f"checkpoint {self.path} is of other parameters, inputs, code or versions;"
                " training starts afresh"
            )
            return None
        return found


class Follower:
    """In place of a `Checkpoint` in a process that shares a training: process 0 has it, and tells."""

    state, epoch, slowest_save = None, 0, 0.0

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder, "state.pt")

    def images(self, count: int, batch: int) -> int:
        return 0

    def due(self, *, within: bool = False, last: bool = False) -> bool:
        return False

    def save(self, epoch: int, state: dict[str, Any], step: int = 0) -> None:
        pass

    def close(self, *, remove: bool = False) -> None:
        pass

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _locked(folder: Path) -> int:
    """Return a file descriptor that holds the folder's lock; the kernel drops it when the process ends."""
    path = folder / "lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # a finishing process removed the folder in between
            continue
        except OSError as e:
            raise UserError(
                f"{folder}: cannot be written ({e.strerror}); make it writable or free space"
            ) from e
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise BusyError(
                f"{folder}: process {holder} is training this job; wait for it or stop it (kill {holder}),"
                " then run again"
            ) from e
        except OSError as e:
            os.close(handle)
            raise UserError(
                f"{path}: cannot be locked ({e.strerror}); use a file system with flock for checkpoints"
            ) from e
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(handle)  # the holder removed the file that we locked: lock the new one
