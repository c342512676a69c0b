"""Checks of what is installed: Python, packages, PyTorch and its devices, MLflow's store."""

import ctypes
import re
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata, util
from pathlib import Path

from attnprior.errors import UserError, one_line
from attnprior.workflow import mlflow_check, mlflow_open
from attnprior.workflow.finding import Finding, ok, problem, warning
from attnprior.workflow.processes import holders

TORCH_SECONDS = 4.0


def project(root=".") -> dict:
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads(Path(root, "pyproject.toml").read_text(encoding="utf-8"))["project"]


def python() -> Iterator[Finding]:
    """Compare this Python with the bounds of pyproject.toml."""
    from packaging.specifiers import SpecifierSet

    own, bounds = ".".join(map(str, sys.version_info[:3])), project()["requires-python"]
    if own in SpecifierSet(bounds):
        yield ok("python", f"{own} ({sys.executable})")
    else:
        yield problem("python", f"{own} is outside {bounds}; make an environment with another Python")


def packages(constraints="constraints") -> Iterator[Finding]:
    """Compare the installed packages with the bounds, and with the exact versions that results come from."""
    from packaging.requirements import Requirement

    pins = _pins(Path(constraints, f"py{sys.version_info[0]}{sys.version_info[1]}.txt"))
    fitting, other = 0, []
    for requirement in map(Requirement, project()["dependencies"]):
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield problem("packages", f"{requirement.name} is missing; pip install -c constraints/… .")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield problem(
                "packages", f"{requirement.name} {version} is outside {requirement.specifier}; install again"
            )
        elif (pin := pins.get(_normal(requirement.name))) and version.partition("+")[0] != pin:
            other.append(f"{requirement.name} {version} (pinned {pin})")
        else:
            fitting += 1
    if other:
        shown = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
        yield warning("packages", f"{shown}: last digits may differ from results with the pinned versions")
    yield ok("packages", f"{fitting} of {len(project()['dependencies'])} as pinned in {constraints}/")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {_normal(name): pin for name, _, pin in (line.partition("==") for line in lines) if pin}


def yaml_parser(module="_ruamel_yaml") -> Iterator[Finding]:
    """Look for the C parser of YAML that DVC uses if it is there."""
    if util.find_spec(module):
        yield ok("yaml parser", "ruamel.yaml.clib is there")
    else:
        yield warning(
            "yaml parser",
            "DVC takes 2.3 times as long without ruamel.yaml.clib; pip install ruamel.yaml.clib",
        )


def start_torch() -> tuple[subprocess.Popen, float]:
    """Start a process that imports PyTorch; return it and when its time is over."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import torch"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return child, time.monotonic() + TORCH_SECONDS


def torch_found(child: subprocess.Popen, until: float, settings: dict | None) -> Iterator[Finding]:
    """Say whether PyTorch can be imported and has the device that the settings name."""
    late = ""
    try:
        _, error = child.communicate(timeout=max(0.1, until - time.monotonic()))
        if child.returncode:
            last = error.strip().splitlines()[-1] if error.strip() else "no message"
            yield problem("torch", f"cannot be imported: {one_line(last)}; install it again")
            return
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        late = f" (its import took more than {TORCH_SECONDS:g} s: a busy machine, or a slow disk)"
    names, cuda = cuda_devices(), torch_cuda()
    device = settings["compute"]["device"] if settings else "cpu"
    about = (
        f"{metadata.version('torch')}, CUDA devices: {', '.join(names) or 'none'}, compute.device: {device}"
    )
    if device == "cuda" and not (names and cuda):
        reason = "no CUDA device is visible" if cuda else "this build has no CUDA"
        yield problem("torch", f"{about}, but {reason}; set compute.device: cpu in params.yaml")
    elif device == "cpu" and names and cuda:
        yield ok("torch", f"{about}; larger models run faster with compute.device: cuda{late}")
    else:
        yield ok("torch", about + late)


def torch_cuda() -> bool:
    """Return whether the installed PyTorch was built with CUDA, without importing it."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return re.search(r"^cuda\b.*= '", text, re.M) is not None


def cuda_devices(library="libcuda.so.1") -> list[str]:
    """Return the names of the CUDA devices that this process may use, from the driver itself."""
    try:
        driver = ctypes.CDLL(library)
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return []
    except (OSError, AttributeError):
        return []
    found = []
    for i in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(100)
        driver.cuDeviceGet(ctypes.byref(device), i)
        driver.cuDeviceGetName(name, 100, device)
        found.append(name.value.decode(errors="replace"))
    return found


def mlflow_store(root=".") -> Iterator[Finding]:
    """Read the store that MLflow would use: its format and who has locked it. Results do not need it."""
    uri = mlflow_open.tracking_uri(root)
    path = mlflow_open.sqlite_path(uri)
    try:
        if mlflow_open.is_new_sqlite(uri):
            yield ok("mlflow", f"no store yet; the first run makes {path}")
            return
        mlflow_check.check_store(uri)
    except UserError as e:
        yield warning("mlflow", f"{uri}: {e}; runs go on without it, then: attnprior track")
        return
    except (OSError, sqlite3.Error) as e:
        busy = f"; process {_names(holders(path))} has locked it" if path and holders(path) else ""
        yield warning("mlflow", f"{uri}: {one_line(e)}{busy}; runs go on without it, then: attnprior track")
        return
    if path is None:
        yield ok("mlflow", f"{uri} (reachable, if it names a server)")
    elif pids := holders(path, writing=True):
        yield warning("mlflow", f"{path}: process {_names(pids)} is writing; attnprior waits its turn")
    else:
        yield ok("mlflow", str(path))


def _names(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))
