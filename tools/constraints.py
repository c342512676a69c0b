"""Write constraints/pyXY.txt for the Python that runs this; `make constraints` does it for all.

pip resolves the package with all its extras as on a machine where nothing is installed. It reads
the metadata of wheels by range requests and installs nothing, so this costs megabytes, not gigabytes.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "remote,s3,servers,slurm,ssh,test,timm"

HEADER = """\
# What `pip install '.[{extras}]'` installs with Python {minor} on {system}, exactly.
# Made from pyproject.toml by pip's resolver: `make constraints` makes it anew; do not edit by hand.
# A constraint binds only what is needed, so the file serves installations with fewer extras and
# other systems, too; what only those need (Windows, macOS) is not pinned.
"""


def resolve(folder: Path) -> dict[str, str]:
    """Return the version of each distribution that pip would install into an empty environment."""
    python, report = folder / "venv" / "bin" / "python", folder / "report.json"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [python, "-m", "pip", "install", "-qq"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)
    pip += ["--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", report]
    subprocess.run([*pip, f"{ROOT}[{EXTRAS}]"], check=True)
    entries = [e["metadata"] for e in json.loads(report.read_text(encoding="utf-8"))["install"]]
    versions = {re.sub(r"[-_.]+", "-", e["name"]).lower(): e["version"].partition("+")[0] for e in entries}
    del versions["attnprior"]
    return versions


def main() -> None:
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tempfile.TemporaryDirectory() as folder:
        versions = resolve(Path(folder))
    path = ROOT / "constraints" / f"py{minor.replace('.', '')}.txt"
    system = f"{platform.system()} {platform.machine()}"
    pins = "".join(f"{name}=={versions[name]}\n" for name in sorted(versions))
    path.write_text(HEADER.format(extras=EXTRAS, minor=minor, system=system) + pins, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(versions)} versions")


if __name__ == "__main__":
    main()
