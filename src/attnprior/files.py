"""Files: atomic writes, content hashes, and safetensors with a JSON header."""

import contextlib
import glob
import hashlib
import json
import os
import tempfile
from pathlib import Path

from attnprior.errors import UserError, one_line


def sha256(path) -> str:
    """Return the SHA-256 of a file's content as hex.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from e


def canonical_json(value) -> str:
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value) -> str:
    """Return the SHA-256 of the canonical JSON of `value` as hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@contextlib.contextmanager
def atomic(path):
    """Yield a temporary path beside `path` that replaces it when the block ends without error.

    A reader sees the old file or the whole new one; after an error the old one is untouched.

    Raises:
        UserError: the folder cannot be made or written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as e:
        raise UserError(
            f"{path.parent}: cannot be written ({e.strerror}); make it writable or free space"
        ) from e
    try:
        yield Path(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as e:
        raise UserError(f"{path}: cannot be written ({e.strerror}); free space or make it writable") from e
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def left_over(path) -> list[Path]:
    """Return the temporary files that killed writers of `path` left beside it."""
    path = Path(path)
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


def write_text(path, text: str) -> None:
    """Write `text` to `path` atomically, with Unix line ends."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path, value) -> None:
    """Write `value` to `path` atomically as indented JSON with sorted keys and a final line end."""
    write_text(path, json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n")


def sealed(record: dict) -> dict:
    """Return `record` with the digest of all its other entries as `digest`."""
    return {**record, "digest": digest({k: v for k, v in record.items() if k != "digest"})}


def read_json(path):
    """Return the content of a JSON file.

    Raises:
        UserError: the file is missing or no JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise UserError(f"{path}: not valid JSON ({e}); delete it and run again") from e


def save_tensors(path, tensors: dict, header: dict) -> None:
    """Write tensors and a JSON `header` to a safetensors file, atomically and reproducibly.

    `tensors` maps names to torch tensors or NumPy arrays (all of one kind). Equal content gives
    equal bytes: the header is stored as one canonical JSON string under the metadata key `json`.
    """
    metadata = {"json": canonical_json(header)}
    if all(type(t).__module__.startswith("numpy") for t in tensors.values()):
        from safetensors.numpy import save_file
    else:
        from safetensors.torch import save_file  # type: ignore[assignment]

        tensors = {k: t.detach().cpu().contiguous() for k, t in tensors.items()}
    with atomic(path) as temporary:
        save_file(tensors, str(temporary), metadata=metadata)


def read_header(path) -> dict:
    """Return the JSON header of a file written by `save_tensors`, without reading its tensors.

    Raises:
        UserError: the file is missing, truncated or of another format.
    """
    with opened_tensors(path, "numpy") as f:
        return json.loads((f.metadata() or {}).get("json", "{}"))


def load_tensors(path, framework: str = "pt", device: str = "cpu") -> tuple[dict, dict]:
    """Return (tensors by name, header) of a file written by `save_tensors`.

    `framework` is "pt" for torch tensors or "numpy" for arrays.

    Raises:
        UserError: the file is missing, truncated or of another format.
    """
    with opened_tensors(path, framework, device) as f:
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 (not a dict)
        return tensors, json.loads((f.metadata() or {}).get("json", "{}"))


@contextlib.contextmanager
def opened_tensors(path, framework, device="cpu"):
    """Yield a safetensors file, opened; its errors become a UserError that names the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework=framework, device=device) as f:
            yield f
    except OSError as e:  # includes FileNotFoundError
        raise UserError(f"{path}: cannot be read ({one_line(e)})") from e
    except (SafetensorError, ValueError) as e:
        raise UserError(
            f"{path}: corrupt or truncated ({one_line(e)}); delete it and run again, or `dvc checkout` it"
        ) from e
