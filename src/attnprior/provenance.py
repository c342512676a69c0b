"""What is true of the machine and the moment, not of a result."""

import os
import resource
import sys
import time
from functools import cache
from importlib import metadata

import attnprior

IMPORTED = time.monotonic()
LARGE = {
    "torch": "torch",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "matplotlib": "matplotlib",
}


def versions() -> dict[str, str]:
    """Return the versions that can change results; of large libraries only where they are imported."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "attnprior": attnprior.__version__}
    for name, module in LARGE.items():
        if sys.modules.get(module) is not None:
            found[name] = str(sys.modules[module].__version__)
    for name in ("numpy", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def platform() -> dict[str, str]:
    """Return operating system, architecture and C library; with torch what it computes with, as well."""
    uname = os.uname()
    found = {"os": f"{uname.sysname} {uname.release}", "machine": uname.machine, "libc": _libc()}
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        if torch.version.cuda and torch.cuda.is_initialized():
            found |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
            found["driver"] = _driver()
    return found


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, OSError, ValueError):  # not glibc
        return "unknown"


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as f:
            return f.readline().partition(":")[2].strip() or "unknown"
    except OSError:
        return "unknown"


@cache
def device_name(device: str = "cpu") -> str:
    """Return the device with its model name, as "cpu (AMD EPYC 7763)"."""
    if device.startswith("cuda"):
        import torch

        return f"{device} ({torch.cuda.get_device_name(device)})"
    model = "unknown"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            names = (line.partition(":")[2].strip() for line in f if line.startswith("model name"))
            model = next(names, model)
    except OSError:  # not Linux
        import platform as system

        model = system.processor() or model
    return f"cpu ({model})"


def commit() -> str | None:
    """Return the commit that the caller of the job says it runs."""
    return os.environ.get("ATTNPRIOR_COMMIT") or None


def invocation() -> str | None:
    """Return the id of the `attnprior run` that started the job."""
    return os.environ.get("ATTNPRIOR_INVOCATION") or None


def process_age() -> float:
    """Return the seconds since this process started, or since this import where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as f:
            ticks = int(f.read().rpartition(")")[2].split()[19])  # field 22, after the name
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - IMPORTED


def max_rss_mb() -> int:
    """Return the largest resident memory of this process so far, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
